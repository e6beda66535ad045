"""Responses that have the form which is wanted, or not; a row's last part are the options."""

TWO = {"tags": ["think", "answer"]}
REASONING = {"tags": ["reasoning", "answer"]}
ONE = {"tags": ["answer"]}
THREE = {"tags": ["plan", "think", "answer"]}
LAZY = {"pattern": r"<think>.*?</think>\s*<answer>.*?</answer>"}
THINKS = {"pattern": r"^<think>(?!.*<think>)(.*?)</think>.*$"}
OWN_LINES = {"pattern": r"<reasoning>\n.*\n</reasoning>\n<answer>\n.*\n</answer>"}

RIGHT_TAGS = [
    # huggingface/open-r1 tests/test_rewards.py
    "<think>Some reasoning</think><answer>The answer</answer>",
    "<think>2 + 2 = 4</think> \t <answer>4</answer>",  # huggingface/open-r1 PR 157
    "\n<think>2 + 2 = 4</think>\n\n\n<answer>4</answer>\n\n",  # BY571/SCoRe PR 6
    # huggingface/trl tests/test_rewards.py
    "<think>\nThis is <some tag> my reasoning.</think>\n<answer>4</answer>",
    "<think>It is a wild dog.</think>\n<answer></answer>",  # Liuziyu77/Visual-RFT 176
    "<think>2 < 3 and 5 > 4</think><answer>x < 3</answer>",
    "<think>Use <b>bold</b>.<br/></think><answer><p>4</p></answer>",
    "<think>\u601d\u8003</think>\u3000<answer>\u56db</answer>",
    "<think><thinking>deeply</thinking></think><answer>4</answer>",
]
WRONG_TAGS = [
    "<think>Only thinking</think>",  # huggingface/open-r1 tests/test_rewards.py
    # huggingface/open-r1 tests/test_rewards.py
    "<think>Missing closing</think><answer>Missing closing",
    # huggingface/open-r1 tests/test_rewards.py
    "<think>Wrong order</answer><answer>Wrong order</think>",
    "So<think>2 + 2 = 4</think>\n<answer>4</answer>",  # huggingface/trl tests/test_rewards.py
    # huggingface/trl tests/test_rewards.py
    "<think>This is<think>my reasoning.</think></think><answer>4</answer>",
    "<think>2 + 2</think>\n<think>is 4</think>\n<answer>4</answer>",  # huggingface/open-r1 359
    # huggingface/open-r1 PR 418
    "<think>a</think><answer>4</answer><think>b</think><answer>5</answer>",
    "<think>a</think>\n<answer>\n333\n</answer>\n</answer>",  # huggingface/open-r1 616
    "<think>2 + 2 = 4</think>So the answer is<answer>4</answer>",  # BY571/SCoRe PR 6
    "<think>2 + 2 = 4</think><answer>4</answer>\nI hope that this helps.",  # BY571/SCoRe PR 6
    "<think>2 + 2 = 4</think><answer>4</answer><|im_end|>",  # lsdefine/simple_GRPO 19
    "<Think>2 + 2 = 4</Think><Answer>4</Answer>",  # OpenWhispr/openwhispr 1801
    '<think lang="en">2 + 2 = 4</think><answer unit="m">4</answer>',
    "<think>a<think><answer>4<answer>",
    "<thinking>a</thinking><answer>4</answer>",
    "<think>a<answer>4</answer></think>",
    "<answer><think>a</think>4</answer>",
    "",
]
RIGHT_OTHERS = [
    # huggingface/open-r1 616
    ("<reasoning>\ntest\n</reasoning>\n<answer>\n333\n</answer>", REASONING),
    ("<answer><think>Hm.</think>42</answer>", ONE),
    # huggingface/open-r1 237
    ("<think>\n1. a scooter\n2. a bicycle\n</think>\n<answer>2</answer>", LAZY),
    # huggingface/trl tests/test_rewards.py
    ("<think>\nThis is\nmy reasoning.\n</think>\nThis is my answer.", THINKS),
    # unslothai/notebooks PR 11
    ("<reasoning>\na\n</reasoning>\n<answer>\n4\n</answer>", OWN_LINES),
    ("42\n", {"pattern": r"\d+\n"}),
    ("no", {"pattern": "yes|no"}),
]
WRONG_OTHERS = [
    ("<think>I would write <answer>5</answer>.</think><answer>6</answer>", TWO),  # BY571/SCoRe PR 6
    # meta-pytorch/torchtune PR 2604
    ("<think>a</think><answer>Or <think>more</think> 4</answer>", TWO),
    # huggingface/open-r1 616
    ("<reasoning>\na\n</reasoning>\n<answer>\n3\n</answer>\n</answer>", REASONING),
    ("<answer>4</answer><answer>4</answer>", ONE),  # huggingface/open-r1 PR 418
    ("<think>2 + 2</think>\n<plan>Add.</plan>\n<answer>4</answer>", THREE),
    # huggingface/trl tests/test_rewards.py
    ("<think>This is<think>my reasoning.</think></think>This is my answer.", THINKS),
    ("<reasoning>a</reasoning><answer>4</answer>", OWN_LINES),  # unslothai/notebooks PR 11
    ("42 apples", {"pattern": r"\d+"}),
    ("yes and no", {"pattern": "yes|no"}),
]
ROWS = [
    *((response, "", 1.0, TWO) for response in RIGHT_TAGS),
    *((response, "", 0.0, TWO) for response in WRONG_TAGS),
    *((response, "", 1.0, options) for response, options in RIGHT_OTHERS),
    *((response, "", 0.0, options) for response, options in WRONG_OTHERS),
]
