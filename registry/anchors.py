"""Tools and questions that belong together, of no catalogue in particular.

They show a model's scores for what fits and for what does not, without a single label of one's
own: `registry.relevance` measures every catalogue and every embedding model against them.
"""

from __future__ import annotations

__all__ = ["ANCHORS"]

# (text of a tool, a question that it answers)
ANCHORS: tuple[tuple[str, str], ...] = (
    (
        "Weather forecast. Returns temperature, rain and wind for a place and day.",
        "Do I need an umbrella in Lisbon tomorrow?",
    ),
    (
        "Send e-mail. Sends a message with subject and attachments to one or more recipients.",
        "Mail the minutes to Anna, please.",
    ),
    (
        "Calendar create event. Adds an appointment with start, end and guests to a calendar.",
        "Put the dentist on Thursday at nine in my diary.",
    ),
    (
        "Currency converter. Converts an amount from one currency into another at today's rate.",
        "How much is 200 dollars in yen?",
    ),
    (
        "Stock quote. Latest price and daily change of a listed share.",
        "What is Siemens trading at right now?",
    ),
    (
        "Recipe search. Finds recipes by ingredients, diet and cooking time.",
        "What can I cook with leftover rice and eggs?",
    ),
    (
        "Flight search. Lists flights between two airports with prices.",
        "Cheapest way to fly from Oslo to Rome in May?",
    ),
    (
        "Hotel booking. Reserves a room in a hotel for given dates.",
        "I need a bed for two nights near the station in Lyon.",
    ),
    (
        "Translate text. Translates a text from one language into another.",
        "How do you say good morning in Finnish?",
    ),
    (
        "Create issue. Opens a ticket in the bug tracker with title, description and priority.",
        "The login page crashes on Safari, please file that.",
    ),
    (
        "Git commit log. Lists the latest commits of a repository.",
        "Who changed the parser last week?",
    ),
    (
        "Run SQL query. Executes a read-only statement on the warehouse and returns rows.",
        "How many customers signed up in March?",
    ),
    (
        "Image generator. Draws a picture from a textual description.",
        "Paint me a fox reading a newspaper.",
    ),
    (
        "Text to speech. Reads a text aloud and returns an audio file.",
        "Read this chapter to me.",
    ),
    (
        "Set thermostat. Sets the target temperature of a room.",
        "It's freezing in the bedroom, make it 21 degrees.",
    ),
    (
        "Switch light. Turns a lamp on or off or dims it.",
        "Too bright in here, dim the lamp.",
    ),
    (
        "Play music. Starts a song, album or playlist on a speaker.",
        "Put on some Miles Davis.",
    ),
    (
        "Web search. Searches the internet and returns links and snippets.",
        "Look up who won the election in Chile.",
    ),
    (
        "Route planner. Directions and travel time between two addresses by car, bike or on foot.",
        "How do I get from here to the museum by bike?",
    ),
    (
        "Parcel tracking. Shows where a shipment is and when it will arrive.",
        "Where is my package?",
    ),
    (
        "Invoice create. Creates an invoice with positions and tax for a customer.",
        "Bill Miller Ltd for three days of consulting.",
    ),
    (
        "Payroll report. Salaries and deductions of employees in a month.",
        "What did we pay the warehouse team in June?",
    ),
    (
        "Solve equation. Solves algebraic equations symbolically.",
        "For which x is x squared minus 5x equal to 6?",
    ),
    (
        "Unit converter. Converts lengths, weights and volumes between units.",
        "How many litres are 3 gallons?",
    ),
    (
        "Movie information. Cast, plot and ratings of films.",
        "Who played the butler in that Hitchcock film?",
    ),
    (
        "Football results. Scores, fixtures and tables of leagues.",
        "Did Arsenal win on Sunday?",
    ),
    (
        "Job search. Finds vacancies by title, place and salary.",
        "Any openings for nurses in Hamburg?",
    ),
    (
        "Real estate listings. Flats and houses for sale or rent with photos.",
        "Find a three-room flat under 1200 a month.",
    ),
    (
        "Calorie lookup. Nutrition facts of foods and meals.",
        "How much protein is in a cup of lentils?",
    ),
    (
        "Workout log. Records exercises, sets and weights of a training session.",
        "I benched 80 kilos five times, note that.",
    ),
    (
        "Drug interactions. Checks whether medicines may be taken together.",
        "Can I take ibuprofen with my blood pressure pills?",
    ),
    (
        "Legal document search. Finds court decisions and statutes.",
        "Is there a ruling about noise from heat pumps?",
    ),
    (
        "Summarise PDF. Extracts the main points of a PDF document.",
        "What does this report say in short?",
    ),
    (
        "Resize image. Changes width and height of a picture file.",
        "Make this photo 800 pixels wide.",
    ),
    (
        "Create user account. Registers a new user with name, e-mail and role.",
        "Give the new intern access.",
    ),
    (
        "Server metrics. CPU, memory and disk usage of a host over time.",
        "Why is web-3 so slow since noon?",
    ),
    (
        "Restart service. Restarts a process on a server.",
        "Bounce nginx on staging.",
    ),
    (
        "Storage upload. Uploads a file to a bucket.",
        "Save the backup in the cloud.",
    ),
    (
        "Domain whois. Registration data of an internet domain.",
        "Who owns example.org?",
    ),
    (
        "Post to social network. Publishes a text or picture on a profile.",
        "Tweet that we are hiring.",
    ),
    (
        "Podcast finder. Searches podcasts and episodes by topic.",
        "Something to listen to about ancient Rome?",
    ),
    (
        "Book recommendations. Suggests books similar to ones you liked.",
        "I loved Dune, what should I read next?",
    ),
    (
        "Gift ideas. Suggests presents for a person and budget.",
        "What to get my father for his birthday?",
    ),
    (
        "Coupon search. Finds discount codes of online shops.",
        "Any deals on running shoes?",
    ),
    (
        "Product catalogue search. Finds articles of a shop by name and price.",
        "Show me red sneakers below 60 euros.",
    ),
    (
        "Order cancel. Cancels an order that has not been shipped.",
        "I don't want the sofa any more.",
    ),
    (
        "Customer lookup. Finds a customer record by name or number.",
        "Get me the account of Mrs Novak.",
    ),
    (
        "Survey create. Builds a questionnaire and collects answers.",
        "Ask the team which day suits them.",
    ),
    (
        "Vocabulary trainer. Quizzes words of a foreign language.",
        "Test me on Spanish verbs.",
    ),
    (
        "Astronomy data. Positions and rise times of planets and stars.",
        "When can I see Jupiter tonight?",
    ),
    (
        "Tarot reading. Draws cards and interprets them.",
        "What does the future hold for me?",
    ),
    (
        "Random number. Draws a random integer in a range.",
        "Roll two dice.",
    ),
    (
        "Timer. Starts a countdown that rings at its end.",
        "Wake me in twenty minutes.",
    ),
    (
        "Shopping list add. Adds an item to the shopping list.",
        "We are out of milk.",
    ),
    (
        "Vacuum start. Lets the robot clean a room.",
        "Hoover the living room.",
    ),
    (
        "Crypto wallet balance. Balance and transactions of a blockchain address.",
        "How many bitcoins do I have left?",
    ),
    (
        "Patent search. Finds patents by words, owner and class.",
        "Has anybody protected a folding bicycle helmet?",
    ),
    (
        "Genome browser. Returns genes and variants in a region of a chromosome.",
        "Which genes lie near position 4 million on chromosome 7?",
    ),
    (
        "Code formatter. Formats source code by a style guide.",
        "Clean up the indentation of this file.",
    ),
    (
        "Earthquake feed. Recent earthquakes with magnitude and place.",
        "Did the ground shake in Japan today?",
    ),
    (
        "Train timetable. Connections between two stations with departure times and changes.",
        "When does the last train to Basel leave?",
    ),
    (
        "Car rental. Finds and books rental cars at a place for given dates.",
        "I need a small car in Malaga for a week.",
    ),
    (
        "Restaurant reservation. Books a table for a number of guests at a time.",
        "Table for six on Friday evening, somewhere Italian.",
    ),
    (
        "Food delivery order. Orders dishes from a restaurant to an address.",
        "Get me two margheritas to the office.",
    ),
    (
        "Air quality. Concentration of ozone and particles at a place.",
        "Is it safe to jog along the ring road today?",
    ),
    (
        "Tide table. Times of high and low water at a coast.",
        "When is low tide in Saint-Malo?",
    ),
    (
        "Hiking trails. Finds walking routes by length, height and region.",
        "An easy walk of two hours near Innsbruck?",
    ),
    (
        "Parking spaces. Free places and prices of car parks in a city.",
        "Where can I leave the car near the opera?",
    ),
    (
        "Visa requirements. Entry rules for travellers by nationality and destination.",
        "Does a Brazilian need papers to enter Vietnam?",
    ),
    (
        "Fuel prices. Compares prices of petrol stations nearby.",
        "Where is diesel cheapest around here?",
    ),
    (
        "Spreadsheet write cell. Writes a value or formula into a cell of a sheet.",
        "Put the total into B12.",
    ),
    (
        "Chart drawing. Draws a line, bar or pie chart from a table.",
        "Show the turnover of each region as bars.",
    ),
    (
        "Convert document. Converts files between Word, PDF, HTML and Markdown.",
        "I need this letter as a PDF.",
    ),
    (
        "OCR. Reads the text out of a scanned page or photo.",
        "What is written on this receipt?",
    ),
    (
        "Spelling check. Finds mistakes of spelling and grammar in a text.",
        "Are there typos in my application?",
    ),
    (
        "Plagiarism check. Compares a text with published sources.",
        "Did he copy this essay from somewhere?",
    ),
    (
        "Electronic signature. Sends a document to people who have to sign it.",
        "Let both partners sign the lease.",
    ),
    (
        "Meeting minutes. Writes down who said what from a recording.",
        "What did we agree on in yesterday's call?",
    ),
    (
        "Send text message. Sends an SMS to a telephone number.",
        "Text Tom that I'm late.",
    ),
    (
        "Video call. Starts a video conference and invites people.",
        "Ring grandma with the camera on.",
    ),
    (
        "Chat channel post. Posts a message into a channel of the team's chat.",
        "Tell everyone in general that lunch is here.",
    ),
    (
        "Contact search. Finds telephone numbers and addresses in the address book.",
        "What's the plumber's number?",
    ),
    (
        "Task list add. Adds a task with a due date to a to-do list.",
        "Don't let me forget to renew the passport.",
    ),
    (
        "Note search. Finds notes by words and tags.",
        "Where did I write down the wifi password for the cabin?",
    ),
    (
        "Bank transfer. Sends money to an account.",
        "Pay the rent to Mr Keller.",
    ),
    (
        "Account statement. Lists transactions and the balance of a bank account.",
        "How much did I spend on groceries last month?",
    ),
    (
        "Loan calculator. Monthly rate of a loan by amount, interest and duration.",
        "What would 250,000 over 20 years cost me each month?",
    ),
    (
        "Tax return. Estimates income tax and collects deductible expenses.",
        "Can I deduct my desk at home?",
    ),
    (
        "Insurance claim. Reports damage to an insurer.",
        "A stone cracked my windscreen.",
    ),
    (
        "Expense report. Collects receipts of a business trip for refund.",
        "I want the taxi from Tuesday back.",
    ),
    (
        "Stock level. Quantity of an article in each warehouse.",
        "Do we still have the blue mugs?",
    ),
    (
        "Purchase order. Orders goods from a supplier.",
        "Get another thousand screws from Bolt Inc.",
    ),
    (
        "Leave request. Asks for days off and shows what remains.",
        "I'd like to be away the week after Easter.",
    ),
    (
        "Shift plan. Shows and changes who works when.",
        "Who is on duty on Sunday night?",
    ),
    (
        "Ticket reply. Answers a customer's support request.",
        "Write to her that the refund is on its way.",
    ),
    (
        "Sales pipeline. Open deals with value, stage and probability.",
        "Which contracts might we close this quarter?",
    ),
    (
        "Run tests. Executes the test suite of a project and returns failures.",
        "Is the build green?",
    ),
    (
        "Deploy release. Rolls a version out to an environment.",
        "Ship 2.4 to production.",
    ),
    (
        "Log search. Searches log lines of services by time and words.",
        "Any time-outs in checkout since midnight?",
    ),
    (
        "DNS record update. Changes an address record of a domain.",
        "Point shop.example.org to the new machine.",
    ),
    (
        "Create pull request. Proposes the changes of a branch for review.",
        "Put my branch up for review.",
    ),
    (
        "Rotate key. Replaces an access key by a new one.",
        "Somebody leaked our token, change it.",
    ),
    (
        "Symptom checker. Possible causes of complaints and how urgent they are.",
        "My ear has hurt since the flight.",
    ),
    (
        "Doctor appointment. Books a visit at a surgery.",
        "I need to have my back looked at next week.",
    ),
    (
        "Sleep statistics. Duration and phases of sleep from a wearable.",
        "Did I rest well this week?",
    ),
    (
        "Poison information. What to do after swallowing a substance or plant.",
        "The dog ate a lily, what now?",
    ),
    (
        "Plant identification. Names a plant in a photo and how to care for it.",
        "What is this yellow flower in my garden?",
    ),
    (
        "Pet adoption. Animals in shelters that look for a home.",
        "We'd like to give an old cat a home.",
    ),
    (
        "Poem writer. Writes verses about a subject in a form.",
        "A limerick for my boss's farewell, please.",
    ),
    (
        "Chess analysis. Rates a position and suggests moves.",
        "Was taking the bishop a mistake?",
    ),
    (
        "Quiz questions. Returns questions with answers by subject and difficulty.",
        "Something tricky about capitals for game night.",
    ),
    (
        "Museum objects. Searches collections for works, artists and periods.",
        "Where do Vermeer's paintings hang?",
    ),
    (
        "Concert tickets. Events of an artist or place with prices.",
        "Is Adele coming to Munich this year?",
    ),
    (
        "Lyrics search. Finds songs by a line of text.",
        "Which song goes we all live in a yellow something?",
    ),
    (
        "Dictionary. Meaning, origin and synonyms of a word.",
        "What does defenestration mean?",
    ),
    (
        "Periodic table. Properties of chemical elements.",
        "How dense is tungsten?",
    ),
    (
        "Statistics test. Compares two samples and returns the p-value.",
        "Is the difference between both groups real?",
    ),
    (
        "Satellite images. Pictures of an area from orbit by date.",
        "How much forest was lost there since 2010?",
    ),
    (
        "Matrix product. Multiplies two matrices.",
        "Multiply these two tables of numbers.",
    ),
    (
        "Door lock. Locks or unlocks a door.",
        "Did I close up when I left? If not, do it.",
    ),
)
