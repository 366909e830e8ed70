"""`python -m agent.cli` is the command `toolrag`."""

from agent.cli.main import main

if __name__ == "__main__":
    main()
