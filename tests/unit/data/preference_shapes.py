"""Rows of pairs and of labelled answers, in the shapes that public data sets have."""

from tests.unit.data.shapes import KM, LONG, A, B, M, U, labelled, pair, said, says, sharegpt

HH = "\n\nHuman: A river?\n\nAssistant:"
NILE, KILOMETRES = says(U, A, rejected=B), says(LONG, KM, rejected=M)
CHATML = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"

PAIRS = {
    "a conversation up to the pair (LlamaFactory)": pair(
        says(U, A, rejected=said("a: The M")),
        conversations=sharegpt("u: Name a river."), chosen="The Nile.", rejected="The M",
    ),
    "a pair without a prompt": pair(
        "chosen begins with a message of the assistant, and nothing is said before it",
        prompt=None, chosen=A, rejected=B,
    ),
    "a pair that a chat template has written": pair(
        says(
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
            "The Nile<|im_end|>",
            rejected="The M<|im_end|>",
        ),
        chosen="<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nThe Nile<|im_end|>",
        rejected="<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nThe M<|im_end|>",
    ),
    "texts": pair(
        says("A river?", "The Nile.", rejected="No."),
        prompt="A river?", chosen="The Nile.", rejected="No.",
    ),
    "chat prompt, chat answers (TRL)": pair(NILE, prompt=U, chosen=A, rejected=B),
    "chat prompt, text answers": pair(NILE, prompt=U, chosen="The Nile.", rejected="The Moon."),
    "text prompt, whole conversations (ultrafeedback_binarized)": pair(
        NILE, prompt="Name a river.", chosen=U + A, rejected=U + B, score_chosen=8.0
    ),
    "text prompt, chat answers": pair(NILE, prompt="Name a river.", chosen=A, rejected=B),
    "text prompt, several turns (capybara, orpo-dpo-mix-40k)": pair(
        KILOMETRES, prompt="Name a river.", chosen=LONG + KM, rejected=LONG + M
    ),
    "text prompt of the last turn": pair(
        KILOMETRES, prompt="How long?", chosen=LONG + KM, rejected=LONG + M
    ),
    "chat prompt that begins whole conversations": pair(
        KILOMETRES, prompt=U, chosen=LONG + KM, rejected=LONG + M
    ),
    "implicit chat prompt (trl-lib/ultrafeedback_binarized)": pair(
        NILE, chosen=U + A, rejected=U + B
    ),
    "implicit chat prompt of several turns": pair(KILOMETRES, chosen=LONG + KM, rejected=LONG + M),
    "answers that part at an earlier turn": pair(
        says(U, A + said("u: Thanks.", "a: Sure."), rejected=B),
        chosen=U + A + said("u: Thanks.", "a: Sure."), rejected=U + B,
    ),
    "implicit text prompt (hh-rlhf)": pair(
        says(HH, " The Nile.", rejected=" The Moon."),
        chosen=f"{HH} The Nile.", rejected=f"{HH} The Moon.",
    ),
    "implicit text prompt without marks": pair(
        says("Which river? the", " Nile", rejected=" Nine"),
        chosen="Which river? the Nile", rejected="Which river? the Nine",
    ),
    "question, system and texts (orca_dpo_pairs)": pair(
        says("A river?", "The Nile.", rejected="No", system="Be brief."),
        {"prompt_key": "question"},
        system="Be brief.", question="A river?", chosen="The Nile.", rejected="No",
    ),
    "ShareGPT pairs": pair(
        NILE,
        chosen=sharegpt("u: Name a river.", "a: The Nile."),
        rejected=sharegpt("u: Name a river.", "a: The Moon."),
    ),
    "turns with scores of their own": pair(
        says([{**U[0], "score": 1}], [{**A[0], "score": 1}], rejected=[{**B[0], "score": 2}]),
        chosen=[{**m, "score": 1} for m in U + A], rejected=[{**m, "score": 2} for m in U + B],
    ),
    "a prompt that is not in them": pair(
        "the prompt, 'Name a hill.', is said by no user in chosen",
        prompt="Name a hill.", chosen=U + A, rejected=U + B,
    ),
    "a chat prompt that is not in them": pair(
        "chosen begins with a message of the user that is not the prompt's",
        prompt=said("u: Name a hill."), chosen=U + A, rejected=U + B,
    ),
    "answers to different prompts": pair(
        "chosen begins with a message of the user; behind the prompt",
        chosen=U + A, rejected=said("u: Name a hill.") + B,
    ),
    "the same answer twice": pair(
        "are the same messages, which prefers nothing", prompt=U, chosen=A, rejected=A
    ),
    "the same conversation, cut": pair(
        "chosen begins with a message of the user", chosen=LONG + KM, rejected=U + A
    ),
    "an answer of the user": pair(
        "rejected begins with a message of the user", prompt=U, chosen=A, rejected=said("u: No.")
    ),
    "a text and a chat": pair(
        "are list .* and str 'No.'; both must be texts, or both chat lists",
        prompt=U, chosen=A, rejected="No.",
    ),
    "texts that repeat the prompt": pair(
        "both answers begin with the prompt",
        prompt="Name a long river.", chosen="Name a long river. The Nile.",
        rejected="Name a long river. No.",
    ),
    "texts without a prompt": pair(
        "there is no prompt: no column has one, and chosen and rejected begin differently",
        chosen="Yes", rejected="No",
    ),
    "a prompt that ends with an answer": pair(
        "the prompt ends with a message of the assistant, and so begins chosen",
        prompt=U + A, chosen=KM, rejected=M,
    ),
    "texts that part where the user speaks": pair(
        "chosen and rejected part behind .*Human:.*, where it is not the model that speaks",
        chosen=f"{HH} The Nile.\n\nHuman: more\n\nAssistant: x",
        rejected=f"{HH} The Nile.\n\nHuman: less\n\nAssistant: y",
    ),
    "texts that part at the first words": pair(
        "chosen and rejected part behind .*Human:.*, where it is not the model that speaks",
        chosen=f"{HH} The Nile.", rejected="\n\nHuman: A hill?\n\nAssistant: Etna.",
    ),
    "a text that ends with the user": pair(
        "chosen has .*Human:.*, behind which it is not the model that speaks",
        chosen=f"{HH} The Nile.\n\nHuman: ok", rejected=f"{HH} The Moon.",
    ),
    "texts that part at an earlier answer": pair(
        "rejected has .*Human:.*, behind which it is not the model that speaks",
        chosen=f"{HH} The Moon.",
        rejected=f"{HH} The Nile.\n\nHuman: How long?\n\nAssistant: Long.",
    ),
    "a text of several turns behind its prompt": pair(
        "chosen has .*Human:.*, behind which it is not the model that speaks",
        prompt=HH, chosen=" The Nile.\n\nHuman: How long?\n\nAssistant: Long.",
        rejected=" The Moon.",
    ),
    "whole texts beside a prompt": pair(
        "chosen has .*Human:.*, behind which it is not the model that speaks",
        prompt="A river?", chosen=f"{HH} The Nile.", rejected=f"{HH} The Moon.",
    ),
    "whole texts beside a chat prompt": pair(
        "chosen has .*Human:.*, behind which it is not the model that speaks",
        prompt=U, chosen=f"{HH} The Nile.", rejected=f"{HH} The Moon.",
    ),
    "texts of a chat template that part where the user speaks": pair(
        "chosen and rejected part behind '<.im_start.>user', where it is not the model",
        chosen=f"{CHATML}Hi<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n",
        rejected=f"{CHATML}Hi<|im_end|>\n<|im_start|>user\nless<|im_end|>\n",
    ),
    "texts of DeepSeek's chat template": pair(
        says(
            "<\uff5cUser\uff5c>hi<\uff5cAssistant\uff5c>",
            "The Nile is it",
            rejected="The Nile was it",
        ),
        chosen="<\uff5cUser\uff5c>hi<\uff5cAssistant\uff5c>The Nile is it",
        rejected="<\uff5cUser\uff5c>hi<\uff5cAssistant\uff5c>The Nile was it",
    ),
    "a pair behind an opening of the assistant": pair(
        says(said("a: Hello!") + U, A, rejected=B),
        prompt="Name a river.", chosen=said("a: Hello!") + U + A,
        rejected=said("a: Hello!") + U + B,
    ),
    "a pair beside its better answer as messages": pair(
        NILE, chosen=U + A, rejected=U + B, messages=U + A
    ),
    "a pair that parts early beside its better answer as messages": pair(
        says(U, A + said("u: How long?") + KM, rejected=B),
        chosen=LONG + KM, rejected=U + B, messages=LONG + KM,
    ),
    "answers alone beside messages that end with the better one": pair(
        NILE, chosen="The Nile.", rejected="The Moon.", messages=U + A
    ),
}  # fmt: skip

LABELLED = {
    "a label beside prompt and messages is about the last answer": labelled(
        says(LONG, KM, label=False), prompt=U, messages=LONG + KM, label=False
    ),
    "a labelled completion and what a reward function compares with": labelled(
        says(U, A, label=False, ground_truth="Nile"),
        prompt=U, completion=A, answer="Nile", label=False,
    ),
    "prompt, completion, label (kto-mix-14k)": labelled(
        says(U, A, label=True), prompt=U, completion=A, label=True
    ),
    "texts and a label": labelled(
        says("A river?", "No.", label=False), prompt="A river?", answer="No.", label=False
    ),
    "a completion with its conversation": labelled(
        says(LONG, KM, label=True), prompt=LONG, completion=LONG + KM, label=True
    ),
    "messages and a label (LlamaFactory)": labelled(
        says(LONG, KM, label=False), messages=LONG + KM, label=False
    ),
    "a completion to another prompt": labelled(
        "completion begins with a message of the user that is not the prompt's",
        prompt=said("u: Name a hill."), completion=U + A, label=True,
    ),
    "a label as a word": labelled(
        "label is str 'good'; expected true", prompt=U, completion=A, label="good"
    ),
    "a label is about the last answer of a whole completion": labelled(
        says(LONG, KM, label=False), prompt=U, completion=LONG + KM, label=False
    ),
    "a label is about the last answer behind a prompt": labelled(
        says(LONG, KM, label=False),
        prompt="Name a river.", completion=[*LONG[1:], *KM], label=False,
    ),
    "a labelled completion that begins with its prompt": labelled(
        "completion begins with the prompt, 'Name a long river.'",
        prompt="Name a long river.", completion="Name a long river. The Nile.", label=True,
    ),
}  # fmt: skip

PREFERENCES = [*PAIRS.items(), *LABELLED.items()]
