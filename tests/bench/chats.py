"""A hundred questions of many kinds: short and long, ten languages, code, numbers, lists."""

TOPICS = ("rivers", "copper", "the moon", "bread", "glaciers", "violins", "ants", "maps", "prime numbers", "clocks")

OF_TOPICS = ("What is the most surprising fact about {}?", "Explain {} to a child in three sentences.",
             "List five words that go with {}, as JSON.")

SINGLE = (
    # Other languages.
    "Quelle est la capitale de l'Australie, et pourquoi pas Sydney ?",
    "Schreibe zwei Sätze über den Herbst.",
    "¿Cuántos días tiene un año bisiesto?",
    "Spiegami che cos'è una fuga di Bach.",
    "Расскажи коротко о реке Волге.",
    "日本で一番高い山は何ですか。",
    "请用一句话介绍长城。",
    "Ποια είναι η πρωτεύουσα της Ελλάδας;",
    "ما هي أكبر قارة في العالم؟",
    "Translate into Portuguese: The ship leaves at dawn.",
    "Translate into English: Der Zug kommt heute leider zwanzig Minuten später.",
    "How do you say 'thank you' in Finnish, Turkish and Swahili? 🙂",
    # Code.
    "Write a Python function that returns the n-th Fibonacci number.",
    "What does this print?\n\n    for i in range(3):\n        print(i * i, end=' ')",
    "Write a C function that reverses a string in place.",
    "Find the bug: `int* f() { int x = 3; return &x; }`",
    "Write an SQL query for the ten customers with the most orders.",
    "Explain the difference between a mutex and a semaphore.",
    "Turn this into a list comprehension:\n\nout = []\nfor x in xs:\n    if x > 0:\n        out.append(x ** 2)",
    "Write a regular expression for dates such as 2024-05-17.",
    "Write a bash one-liner that counts the lines of all .py files.",
    "What is the complexity of binary search, and why?",
    "Write HTML for a table with two rows and two columns.",
    "Show a minimal Rust program that reads a file.",
    # Numbers.
    "What is 17 * 23?", "What is 1/3 + 1/6?", "Solve 2x + 5 = 17 for x.",
    "A train goes 60 km in 45 minutes. How fast is it in km/h?",
    "How many primes are there below 50? List them.",
    "What is the derivative of x^3 - 4x + 1?",
    "Anna has 3 apples, buys 5 and eats 2. How many has she?",
    "Convert 100 degrees Fahrenheit to Celsius.",
    "What is the probability of two sixes with two dice?",
    "Continue: 2, 6, 12, 20, 30,",
    "Round 3.14159 to two decimals and say how you did it.",
    "Sum the numbers from 1 to 100.",
    # Tasks with words.
    "Write a haiku about rain.", "Write a limerick about a cat who codes.", "Tell me a joke.",
    "Give me three names for a bakery.", "What rhymes with orange?", "Spell 'necessary' backwards.",
    "Write a polite email that asks for a later deadline.",
    "Correct the grammar: He don't have no time for to reads.",
    "Is this review positive or negative? 'The soup was cold, but the waiter made up for it.'",
    "Name the animals in: The fox chased a hen past two sleepy cows.",
    "Summarize Romeo and Juliet in one sentence.", "Write the first sentence of a ghost story.",
    "Who wrote 'Faust'?", "Why is the sky blue?", "Hi", "What is your name?",
    "When did the Second World War end?", "How do vaccines work?", "Compare tea and coffee in a table.",
    "Give pros and cons of working at night.", "yes or no: is 91 prime?", "Repeat after me: aaa bbb aaa bbb",
)

# With a passage of some hundred words each.
OF_PASSAGES = ("Summarize this in one sentence:\n\n{}", "Which words of this text are technical?\n\n{}",
               "Continue this text:\n\n{}", "Ask three questions about this text:\n\n{}")
PASSAGE = 1200  # characters


def chats(text):
    """Returns 100 questions, 12 of them with passages of `text`, which has 15,000 characters."""
    passages = [text[i * PASSAGE:(i + 1) * PASSAGE] for i in range(12)]
    out = [question.format(topic) for topic in TOPICS for question in OF_TOPICS] + list(SINGLE)
    out += [OF_PASSAGES[i % len(OF_PASSAGES)].format(passage) for i, passage in enumerate(passages)]
    assert len(out) == 100, len(out)
    return out
