"""Responses that have the form which is wanted, or not; a row's last part are the options."""

OPEN_R1 = "huggingface/open-r1 tests/test_rewards.py"
LINES = "huggingface/open-r1 237"
SEVERAL = "huggingface/open-r1 359"
CLOSED_TWICE = "huggingface/open-r1 616"
BLANKS = "huggingface/open-r1 PR 157"
COUNTS = "huggingface/open-r1 PR 418"
TRL = "huggingface/trl tests/test_rewards.py"
MULTIMODAL = "EvolvingLMMs-Lab/open-r1-multimodal 15"
UNSLOTH = "unslothai/unsloth 1761"
NOTEBOOKS = "unslothai/notebooks PR 11"
SCORE = "BY571/SCoRe PR 6"
TORCHTUNE = "meta-pytorch/torchtune PR 2604"
SIMPLE_GRPO = "lsdefine/simple_GRPO 19"
OPEN_RS = "knoveleng/open-rs 2"
SWIFT = "modelscope/ms-swift 6515"
TUNIX = "google/tunix PR 2116"
WHOLE = "eval-protocol/python-sdk tests/test_format.py"
TAG_COUNT = "eval-protocol/python-sdk tests/test_tag_count.py"
EMPTY = "Liuziyu77/Visual-RFT 176"
LETTERS = "Liuziyu77/Visual-RFT 79"
STRAY = "altic-dev/FluidVoice PR 836"
CASES = "OpenWhispr/openwhispr 1801"

TWO = {"tags": ["think", "answer"]}
REASONING = {"tags": ["reasoning", "answer"]}
ONE = {"tags": ["answer"]}
THREE = {"tags": ["plan", "think", "answer"]}
LAZY = {"pattern": r"<think>.*?</think>\s*<answer>.*?</answer>"}
THINKS = {"pattern": r"^<think>(?!.*<think>)(.*?)</think>.*$"}
OWN_LINES = {"pattern": r"<reasoning>\n.*\n</reasoning>\n<answer>\n.*\n</answer>"}
NAMED = {"pattern": r"\[REASONING\].*?\[/REASONING\].*?\[RESULT\].*?\[/RESULT\]"}

RIGHT_TAGS = [
    ("<think>Some reasoning</think><answer>The answer</answer>", OPEN_R1),
    ("<think>\nI count:\n1. a scooter\n2. a bicycle\n</think>\n<answer>2</answer>", LINES),
    ("<think>Two and two.\n</think>\n\n<answer>\nFour.\n</answer>", MULTIMODAL),
    ("<think>2 + 2 = 4</think> \t <answer>4</answer>", BLANKS),
    ("\n<think>2 + 2 = 4</think>\n\n\n<answer>4</answer>\n\n", SCORE),
    ("<think>\nThis is <some tag> my reasoning.</think>\n<answer>4</answer>", TRL),
    ("<think></think>\n<answer>4</answer>", TRL),
    ("<think>It is a wild dog.</think>\n<answer></answer>", EMPTY),
    ("\n  <think>\n  It is 42.\n  </think>\n\n  <answer>\n  42\n  </answer>\n  ", TAG_COUNT),
    ("<think>2 < 3 and 5 > 4</think><answer>x < 3</answer>", ""),
    (r"<think>Halves.</think><answer>$\boxed{\frac{1}{2}}$</answer>", ""),
    ("<think>Use <b>bold</b>.<br/></think><answer><p>4</p></answer>", ""),
    ("<think>\r\na\r\n</think>\r\n<answer>\r\nb\r\n</answer>\r\n", ""),
    ("<think>\u601d\u8003</think>\u3000<answer>\u56db</answer>", ""),
    ("<think>" + "So it is.\n" * 1000 + "</think><answer>4</answer>", ""),
    ("<think><thinking>deeply</thinking></think><answer>4</answer>", ""),
]
WRONG_TAGS = [
    ("<think>Only thinking</think>", OPEN_R1),
    ("<answer>Only answer</answer>", OPEN_R1),
    ("<think>Missing closing</think><answer>Missing closing", OPEN_R1),
    ("<think>Wrong order</answer><answer>Wrong order</think>", OPEN_R1),
    ("2 plus 2 is 4.\n</think>\n<answer>4</answer>", TRL),
    ("So<think>2 + 2 = 4</think>\n<answer>4</answer>", TRL),
    ("<think>\n2 + 2 = 4\n<answer>4</answer>", TRL),
    ("<think>This is<think>my reasoning.</think></think><answer>4</answer>", TRL),
    ("<think>This is</think>\nmy\n<think>reasoning.</think>\n<answer>4</answer>", TRL),
    ("<think>2 + 2</think>\n<think>is 4</think>\n<answer>4</answer>", SEVERAL),
    ("<think>a</think><answer>4</answer><think>b</think><answer>5</answer>", COUNTS),
    ("<think>a</think><think>b</think><answer>1</answer><answer>2</answer>", TORCHTUNE),
    ("<think>a</think>\n<answer>\n333\n</answer>\n</answer>", CLOSED_TWICE),
    ("<think>a</think>The literal </think> tag is stray.<answer>4</answer>", STRAY),
    ("<think>2 + 2 = 4</think>So the answer is<answer>4</answer>", SCORE),
    ("<think>2 + 2 = 4</think><answer>4</answer>\nI hope that this helps.", SCORE),
    ("<think>2 + 2 = 4</think><answer>4</answer><|im_end|>", SIMPLE_GRPO),
    ("Here:\n<think>\n42\n</think>\n<answer>\n42\n</answer>\nThanks for asking!", WHOLE),
    ("<answer>\n42\n</answer>\n<think>\nIt is 42.\n</think>", WHOLE),
    ("<Think>2 + 2 = 4</Think><Answer>4</Answer>", CASES),
    ("<think>2 + 2 = 4</think>\nThe answer is 4.", OPEN_RS),
    ("<answer>\nThe area is 12.\n</answer>", SWIFT),
    ("<think>a</think><answer>4</answer>\nQuestion: 5 + 5?\n<think>b", TUNIX),
    ('<think lang="en">2 + 2 = 4</think><answer unit="m">4</answer>', ""),
    ("&lt;think&gt;a&lt;/think&gt;&lt;answer&gt;4&lt;/answer&gt;", ""),
    ("```xml\n<think>a</think>\n<answer>4</answer>\n```", ""),
    ("<think>a<think><answer>4<answer>", ""),
    ("<think/>a<answer/>4", ""),
    ("<think>a</think><answer>4</answer>.", ""),
    ("<thinking>a</thinking><answer>4</answer>", ""),
    ("<think>a<answer>4</answer></think>", ""),
    ("<answer><think>a</think>4</answer>", ""),
    ("", ""),
]
RIGHT_OTHERS = [
    ("<reasoning>\ntest\n</reasoning>\n<answer>\n333\n</answer>", CLOSED_TWICE, REASONING),
    ("<reasoning>\nOne.\nTwo.\n</reasoning>\n<answer>\n3\n</answer>\n", UNSLOTH, REASONING),
    ("<answer><think>Hm.</think>42</answer>", "", ONE),
    ("<plan>Add.</plan>\n<think>2 + 2</think>\n<answer>4</answer>", "", THREE),
    ("<think>\n1. a scooter\n2. a bicycle\n</think>\n<answer>2</answer>", LINES, LAZY),
    ("[REASONING]\nIt is 42.\n[/REASONING]\n[RESULT]\n42\n[/RESULT]", WHOLE, NAMED),
    ("<think>a</think><|im_end|>", SIMPLE_GRPO, {"pattern": r"<think>.*</think><\|im_end\|>"}),
    ("<think>\nThis is\nmy reasoning.\n</think>\nThis is my answer.", TRL, THINKS),
    ("<reasoning>\na\n</reasoning>\n<answer>\n4\n</answer>", NOTEBOOKS, OWN_LINES),
    ("42\n", "", {"pattern": r"\d+"}),
    ("42\n", "", {"pattern": r"\d+\n"}),
    (r"so $\boxed{4}$.", "", {"pattern": r".*\\boxed\{.+\}.*"}),
    ("no", "", {"pattern": "yes|no"}),
]
WRONG_OTHERS = [
    ("<think>I would write <answer>5</answer>.</think><answer>6</answer>", SCORE, TWO),
    ("<think>Then I begin <answer>.</think><answer>6</answer>", SCORE, TWO),
    ("<think>a</think><answer>Or <think>more</think> 4</answer>", TORCHTUNE, TWO),
    ("<reasoning>\na\n</reasoning>\n<answer>\n3\n</answer>\n</answer>", CLOSED_TWICE, REASONING),
    ("<answer>4</answer><answer>4</answer>", COUNTS, ONE),
    ("<think>2 + 2</think><answer>4</answer>", "", ONE),
    ("<think>2 + 2</think>\n<plan>Add.</plan>\n<answer>4</answer>", "", THREE),
    ("Here: <think>a</think><answer>4</answer> Thanks!", WHOLE, LAZY),
    ("<think>This is<think>my reasoning.</think></think>This is my answer.", TRL, THINKS),
    ("<reasoning>a</reasoning><answer>4</answer>", NOTEBOOKS, OWN_LINES),
    ("A or B or C", LETTERS, {"pattern": "[A-C]"}),
    ("42 apples", "", {"pattern": r"\d+"}),
    ("yes and no", "", {"pattern": "yes|no"}),
]
ROWS = [
    *((response, "", 1.0, source, TWO) for response, source in RIGHT_TAGS),
    *((response, "", 0.0, source, TWO) for response, source in WRONG_TAGS),
    *((response, "", 1.0, *more) for response, *more in RIGHT_OTHERS),
    *((response, "", 0.0, *more) for response, *more in WRONG_OTHERS),
]
