FROM python:3.11.14-slim-bookworm

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1

RUN useradd --create-home --uid 10001 toolrag
WORKDIR /app

COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY agent ./agent
COPY registry ./registry
COPY migrations ./migrations
RUN pip install --constraint constraints.txt '.[local-embeddings]'

USER toolrag
WORKDIR /home/toolrag
ENTRYPOINT ["toolrag"]
CMD ["--help"]
