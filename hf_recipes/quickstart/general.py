"""General rows mixed in against forgetting: prompts of our own, answered by the base model itself.

``general.jsonl`` (training) and ``general_heldout.jsonl`` (the forgetting loss) lie with the shipped recipes, in
messages format. They hold what `answer_prompts` returned for `TRAINING_PROMPTS` and `HELD_OUT_PROMPTS` with
SmolLM2-135M-Instruct in float32; the model is Apache-2.0, as this package is. Because the base wrote the answers,
training on them pulls it back to itself, and the loss on the held-out ones rises when it drifts; they
are not facts to learn from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hf_recipes.recipe.shipped import recipes_root

MAX_ANSWER_TOKENS = 48
_BATCH_ROWS = 64
_UP_TO_LAST_SENTENCE = re.compile(r"^.*[.!?](?=\s|$)(?<!\d\.)", re.DOTALL)

TRAINING_PROMPTS = (
    "What is the capital of France?",
    "What is the capital of Japan?",
    "Which planet is known as the red planet?",
    "Name the largest ocean on Earth.",
    "Who wrote Romeo and Juliet?",
    "How many legs does a spider have?",
    "What color do you get when you mix blue and yellow?",
    "At what temperature does water boil, in degrees Celsius?",
    "What gas do plants take in from the air?",
    "Name one animal that lives in Antarctica.",
    "What is the opposite of cold?",
    "Give a synonym for happy.",
    "How many days are there in a leap year?",
    "Which month comes after March?",
    "What do bees make?",
    "What is the main ingredient of bread?",
    "Name three primary colors.",
    "Name two countries in South America.",
    "What instrument has black and white keys?",
    "Which organ pumps blood through the body?",
    "In one sentence, explain what gravity is.",
    "In one sentence, explain why the sky is blue.",
    "In one sentence, explain what a computer program is.",
    "In one sentence, explain how a bicycle moves.",
    "In one sentence, explain what photosynthesis is.",
    "In one sentence, explain why we sleep.",
    "In one sentence, explain what a dictionary is for.",
    "In one sentence, explain what causes rain.",
    "In one sentence, explain what a volcano is.",
    "In one sentence, explain what money is used for.",
    "In one sentence, explain what a vaccine does.",
    "In one sentence, explain what the internet is.",
    "In one sentence, explain why leaves fall in autumn.",
    "In one sentence, explain what a magnet does.",
    "In one sentence, explain what recycling means.",
    "In one sentence, explain what democracy is.",
    "In one sentence, explain how a refrigerator keeps food cold.",
    "In one sentence, explain what an echo is.",
    "In one sentence, explain what an eclipse is.",
    "In one sentence, explain the difference between weather and climate.",
    "What is 7 plus 5?",
    "What is 9 times 6?",
    "What is 20 minus 8?",
    "What is half of 50?",
    "Is 17 an even or an odd number?",
    "How many minutes are in two hours?",
    "If I have three apples and eat one, how many are left?",
    "Which is larger, 0.5 or 0.25?",
    "Count from one to five.",
    "What comes next: 2, 4, 6, 8?",
    "Translate 'good morning' into Spanish.",
    "Translate 'thank you' into French.",
    "Translate 'the cat is sleeping' into French.",
    "Translate 'where is the station?' into German.",
    "How do you say 'water' in Spanish?",
    "How do you say 'friend' in Italian?",
    "Write one sentence about the sea.",
    "Write one sentence about a rainy day.",
    "Write one sentence about an old house.",
    "Write one sentence about a dog and a ball.",
    "Write a short greeting for a birthday card.",
    "Write a polite reply to a late invitation.",
    "Write a title for a story about a lost key.",
    "Write a slogan for a small bakery.",
    "Write a two-line poem about the moon.",
    "Write one line of advice for a new student.",
    "Write a short thank-you note to a neighbor.",
    "Write one question to ask a scientist.",
    "Write a sentence using the word 'curious'.",
    "Write a sentence using the word 'bridge'.",
    "Rewrite politely: Close the door.",
    "Rewrite politely: Give me the report.",
    "Make this sentence shorter: I am writing to you in order to ask a question.",
    "Correct the grammar: She go to school every day.",
    "Correct the grammar: They was happy yesterday.",
    "Correct the spelling: I recieved your mesage.",
    "Put into the past tense: I walk to the park.",
    "Put into the plural: The child reads a book.",
    "Is the sentence 'I love this film' positive or negative?",
    "Is the sentence 'The food was cold and bland' positive or negative?",
    "Hello!",
    "Hi, how are you today?",
    "Good evening. Can you help me?",
    "Who are you?",
    "What can you do?",
    "Thanks for your help!",
    "Tell me a fun fact.",
    "Tell me a short joke.",
    "I had a long day.",
    "I am bored. What should I do?",
    "Suggest a name for a kitten.",
    "Suggest a healthy snack.",
    "Suggest a simple dinner.",
    "Suggest a hobby for the winter.",
    "Give me one tip for sleeping better.",
    "Give me one tip for learning a language.",
    "Give me one tip for saving energy at home.",
    "Give me one reason to drink water.",
    "Give me one reason to read books.",
    "Give me one example of a mammal.",
    "Give me one example of a renewable source of energy.",
    "Give me one example of a team sport.",
    "What does a doctor do?",
    "What does a gardener do?",
    "What is a noun?",
    "What is a verb?",
    "What is a triangle?",
    "What is a variable in programming?",
    "What is a loop in programming?",
    "What does the print function do in Python?",
    "Which language is spoken in Brazil?",
    "On which continent is Egypt?",
    "Which season comes after summer?",
    "What do cows eat?",
    "What is ice made of?",
    "What is a good way to start an email?",
    "What should I pack for a day at the beach?",
    "How do I make a cup of tea?",
    "How do I boil an egg?",
    "How often should I water a cactus?",
)

HELD_OUT_PROMPTS = (
    "What is the capital of Italy?",
    "Which planet is closest to the sun?",
    "Who painted the Mona Lisa?",
    "How many wheels does a tricycle have?",
    "What is the opposite of early?",
    "Name two countries in Africa.",
    "What do caterpillars turn into?",
    "Which organ do we breathe with?",
    "In one sentence, explain what a rainbow is.",
    "In one sentence, explain why ships float.",
    "In one sentence, explain what a library is.",
    "In one sentence, explain what electricity is.",
    "In one sentence, explain why we wash our hands.",
    "In one sentence, explain what a map shows.",
    "What is 8 plus 6?",
    "What is 5 times 7?",
    "How many hours are in three days?",
    "Translate 'good night' into Spanish.",
    "How do you say 'house' in French?",
    "Write one sentence about a forest.",
    "Write one sentence about a train journey.",
    "Write a title for a story about a snowman.",
    "Write a sentence using the word 'gentle'.",
    "Rewrite politely: Send me the file.",
    "Correct the grammar: He have two brothers.",
    "Good morning!",
    "Tell me something interesting.",
    "Suggest a name for a puppy.",
    "Give me one tip for staying focused.",
    "Give me one example of a reptile.",
    "What does a teacher do?",
    "What is a function in programming?",
)


def general_rows_path() -> Path:
    """The training rows: JSONL, one ``{"messages": [user, assistant]}`` a line."""
    return recipes_root() / "data" / "general.jsonl"


def general_heldout_path() -> Path:
    """The rows the forgetting loss is measured on; same form, other prompts."""
    return recipes_root() / "data" / "general_heldout.jsonl"


def answer_prompts(model: Any, tokenizer: Any, prompts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Answer `prompts` greedily with at most `MAX_ANSWER_TOKENS` new tokens and yield rows in messages format.

    An answer that does not end by itself is cut at its last whole sentence; one without a whole sentence is left out.
    `tokenizer` must pad on the left. To make the shipped files again, write one row a line as JSON.
    """
    for start in range(0, len(prompts), _BATCH_ROWS):
        batch = list(prompts[start : start + _BATCH_ROWS])
        conversations = [[{"role": "user", "content": prompt}] for prompt in batch]
        encoded = tokenizer.apply_chat_template(
            conversations, add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt"
        )
        generated = model.generate(**encoded, max_new_tokens=MAX_ANSWER_TOKENS, do_sample=False)
        for prompt, tokens in zip(batch, generated[:, encoded["input_ids"].shape[1] :].tolist(), strict=True):
            text = tokenizer.decode(tokens, skip_special_tokens=True).strip()
            answer = text if tokenizer.eos_token_id in tokens else whole_sentences(text)
            if answer:
                messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
                yield {"messages": messages}


def whole_sentences(text: str) -> str:
    """`text` up to the end of its last whole sentence (a list number such as ``2.`` ends none), else ``""``."""
    match = _UP_TO_LAST_SENTENCE.match(text)
    return match.group(0).strip() if match else ""
