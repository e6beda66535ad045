r"""Answers of questions with four choices, A to D, or with ten, A to J."""

LM_EVAL = "EleutherAI/lm-evaluation-harness PR 4188"
OMLX = "jundot/omlx PR 3668"
OPENBENCH = "groq/openbench 348"
SIMPLE_EVALS = "openai/simple-evals 33"
SKILLS = "NVIDIA-NeMo/Skills PR 1526"
GYM = "NVIDIA-NeMo/Gym PR 1844"
MMLU_PRO = "TIGER-AI-Lab/MMLU-Pro 7"
OPD = "aniri15/OPD-V 2"
DS4 = "antirez/ds4 319"
DS4_NOT = "antirez/ds4 321"
VISUAL_RFT = "Liuziyu77/Visual-RFT 79"
VERIFYIT = "marin-community/verifyit tests/test_mcq.py"
COT = "raybears/cot-transparency tests/data/answer_examples.yaml"
KORMED = "EleutherAI/lm-evaluation-harness PR 3842"

FOUR = {"A": "Paris", "B": "Rome", "C": "Oslo", "D": "New  York"}
TEN = dict.fromkeys("ABCDEFGHIJ", "")

RIGHT_OF_FOUR = [
    ("B", "B", ""),
    ("b", "B", LM_EVAL),
    ("d", "D", LM_EVAL),
    ("b. 4", "B", LM_EVAL),
    (" c ", "C", VERIFYIT),
    ("**B**", "B", ""),
    ("(B)", "B", ""),
    ("B. No, there are still things that could be done.", "B", ""),
    ("The answer is B because a car moves.", "B", LM_EVAL),
    ("I would pick B — a safe choice.", "B", LM_EVAL),
    ("The answer is a prime number, so (B).", "B", ""),
    ("The answer is B. Note that A is a common distractor.", "B", OMLX),
    ("ANSWER IS D. A is incorrect.", "D", OMLX),
    ("Answer: C\n\nExplanation: choice A fails", "C", ""),
    ("The answer is D, not option A", "D", ""),
    ("The calculated answer is 11.\n\nAnswer seems to be A.\n\nAnswer: A\n", "A", OPENBENCH),
    ("Answer:\n\nAnswer: C", "C", SIMPLE_EVALS),
    (r"With \boxed{\langle H\rangle \ll \Delta E} so **Answer: D**", "D", SKILLS),
    (r"\boxed{\text{C}}", "C", GYM),
    (r"First \boxed{C}, no: \boxed{B: A polygenic risk score}", "B", GYM),
    ("Answer: **D**", "D", OPD),
    ("I considered (A), but it is incorrect. Final answer: D.", "D", OPD),
    ("The correct answer is d.", "D", OPD),
    ("Answer: I think it is C", "C", DS4),
    ("Answer: D, not B", "D", DS4_NOT),
    ("Answer: It is not B, the answer is D", "D", DS4_NOT),
    ("Answer: rules out C, leaving D", "D", DS4_NOT),
    ("Answer:C", "C", VERIFYIT),
    ("Answer : C", "C", VERIFYIT),
    ("Answer: \\boxed{C}\n", "C", VERIFYIT),
    ("**Answer:** C\n", "C", VERIFYIT),
    ("Answer: `C`\n", "C", VERIFYIT),
    ("Answer: A\nOn reflection that is wrong.\nAnswer: C\n", "C", VERIFYIT),
    ("I worked through every option and settled on the third one.\nC\n", "C", VERIFYIT),
    ("Answer: B because the evidence supports it", "B", VERIFYIT),
    ("Therefore, the best answer is:\n(A) The bus is the second-newest", "A", COT),
    ("Option B: iron first\nnot in order\n\nThe best answer is:\n(A)", "A", COT),
    (r"The single most likely answer is: $\boxed{\text{(B) 25\%}}$.", "B", COT),
    ("(D) is often mispronounced.\n\nThe best answer is: (A) The 20 words", "A", COT),
    (r"Therefore, the best answer is: \[\boxed{\text{(C) 600 nm}}\].", "C", COT),
    ("<answer> rome </answer>", "B", ""),
    (r"\boxed{New York}", "D", ""),
    (r"\fbox{B}", "B", ""),
    (r"so $\boxed B$", "B", ""),
    (r"\boxed {B}", "B", ""),
    ("A is tempting, but B is correct.", "B", ""),
    ("A. first\nB. second\nC. third\nTherefore: B", "B", ""),
    ("The answer is B, a prime number.", "B", ""),
    ("The answer is B, I think.", "B", ""),
    ("The answer is A and the others fail.", "A", ""),
    ("There is no doubt that the answer is C.", "C", ""),
    ("The others cannot hold so the answer is D.", "D", ""),
    ("The answer to this question is C", "C", ""),
    ("Ans: C", "C", ""),
    ("Thus, option C.", "C", ""),
    ("The correct choice is C.", "C", ""),
    ("The correct answer is **C. Oslo**.", "C", ""),
    ("Option C", "C", ""),
    ("Rome", "B", ""),
    ("Answer: Rome", "B", ""),
    (r"\boxed{\textbf{(C)}\ 12}", "C", ""),
    (r"\boxed{\text{Option C}}", "C", ""),
    ("B\n\nExplanation: Rome has been the capital since 1871.", "B", ""),
]
RIGHT_OF_TEN = [
    ("The answer is C because I computed the integral.", "C", OMLX),
    ("The answer is I.", "I", OMLX),
    ("The answer might be C. Also it could be (F). Answer: J. Dog is not one.", "J", MMLU_PRO),
]
WRONG_OF_FOUR = [
    ("The answer is a prime number, so (B).", "A", ""),
    ("The answer is A prime number, so (B).", "A", ""),
    ("Answer: C\n\nExplanation: choice A fails", "A", ""),
    ("The answer is D, not option A", "A", ""),
    ("The answer is B because a car moves.", "A", LM_EVAL),
    ("I would pick B — a safe choice.", "A", LM_EVAL),
    ("The answer is B. Note that A is a common distractor.", "A", OMLX),
    ("ANSWER IS D. A is incorrect.", "A", OMLX),
    ("Antwort:\n\nAntwort: C", "A", SIMPLE_EVALS),
    ("A perfect answer cannot be found.", "A", MMLU_PRO),
    ("A solution is hard to see.", "A", MMLU_PRO),
    ("I considered (A), but it is incorrect. Final answer: D.", "A", OPD),
    ("Answer: **D**", "A", OPD),
    ("Answer: It is not B, the answer is D", "B", DS4_NOT),
    ("Answer: rules out C, leaving D", "C", DS4_NOT),
    ("Answer: D, not B", "B", DS4_NOT),
    ("<answer>A or B or C</answer>", "A", VISUAL_RFT),
    ("<answer>A or B or C</answer>", "C", VISUAL_RFT),
    ("Answer: A or B", "A", ""),
    ("The answer is B, C", "B", ""),
    (r"\boxed{A, B}", "A", ""),
    (r"\boxed{B and C}", "C", ""),
    ("Answer: Banana", "B", VERIFYIT),
    ("Answer: E\n", "D", VERIFYIT),
    ("Answer: 3\n", "C", VERIFYIT),
    ("Answer: \\boxed{B}\n", "C", VERIFYIT),
    ("Option B: iron first\nnot in order\n\nThe best answer is:\n(A)", "B", COT),
    ("Answer: BC", "B", VERIFYIT),
    ("Answer: B2", "B", VERIFYIT),
    ("Answer: A\nOn reflection that is wrong.\nAnswer: C\n", "A", VERIFYIT),
    (r"First \boxed{C}, no: \boxed{B: A polygenic risk score}", "C", GYM),
    ("(D) is often mispronounced.\n\nThe best answer is: (A) The 20 words", "D", COT),
    ("정답: it is hard to say, A, B, C and D all occur", "D", KORMED),
    ("The answer is not A.", "A", ""),
    ("I don't think the answer is A. It has another name.", "A", ""),
    ("If the answer is A then Paris lies in Italy.", "A", ""),
    ("The wrong answer is B.", "B", ""),
    ("(B) is right. (A) fails, since it lies in France.", "A", ""),
    ("A. Paris\nB. Rome\nC. Oslo\nD. New York", "A", ""),
    ("So A is a set and D = 5.", "D", ""),
    (r"\boxed{C} was a slip, \boxed{A", "C", ""),
    (r"\boxed{A + B}", "A", ""),
    ("The answer is C = 5", "C", ""),
    ("Because of D vitamins", "D", ""),
    ("The answer is B, a prime number.", "A", ""),
    ("The answer is either B or C.", "C", ""),
    ("I have doubts whether (A) or (C) holds.", "C", ""),
    ("The others cannot hold so the answer is D.", "B", ""),
    ("To see if the answer is C, look at the map.", "C", ""),
    ("Answer: Bern", "B", ""),
    ("", "A", ""),
]
WRONG_OF_TEN = [
    ("The answer is C because I computed the integral.", "I", OMLX),
    ("Answer: I think it is C", "I", DS4),
    ("The answer might be C. Also it could be (F). Answer: J. Dog is not one.", "F", MMLU_PRO),
    ("The answer might be C. Also it could be (F). Answer: J. Dog is not one.", "D", MMLU_PRO),
    (r"With \boxed{\langle H\rangle \ll \Delta E} so **Answer: D**", "E", SKILLS),
    (r"With \boxed{\langle H\rangle \ll \Delta E} so **Answer: D**", "H", SKILLS),
    ("The answer is an I-beam, so E is right.", "I", ""),
]

ROWS = [
    *((response, truth, 1.0, source, FOUR) for response, truth, source in RIGHT_OF_FOUR),
    *((response, truth, 1.0, source, TEN) for response, truth, source in RIGHT_OF_TEN),
    *((response, truth, 0.0, source, FOUR) for response, truth, source in WRONG_OF_FOUR),
    *((response, truth, 0.0, source, TEN) for response, truth, source in WRONG_OF_TEN),
]
