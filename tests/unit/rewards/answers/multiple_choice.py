r"""Answers of questions with four choices, A to D, or with ten, A to J."""

FOUR = {"A": "Paris", "B": "Rome", "C": "Oslo", "D": "New  York"}
TEN = dict.fromkeys("ABCDEFGHIJ", "")

OF_FOUR = [
    ("The answer is Rome.", "B"),
    ("The correct answer is **Rome**, because of the Tiber.", "B"),
    ("The answer is Rome, not Paris.", "B"),
    ("It may be Paris. The answer is: new york", "D"),
    ("B", "B"),
    ("b", "B"),  # EleutherAI/lm-evaluation-harness PR 4188
    ("d", "D"),  # EleutherAI/lm-evaluation-harness PR 4188
    ("b. 4", "B"),  # EleutherAI/lm-evaluation-harness PR 4188
    (" c ", "C"),  # marin-community/verifyit tests/test_mcq.py
    ("**B**", "B"),
    ("(B)", "B"),
    ("B. No, there are still things that could be done.", "B"),
    ("The answer is B because a car moves.", "B"),  # EleutherAI/lm-evaluation-harness PR 4188
    ("I would pick B — a safe choice.", "B"),  # EleutherAI/lm-evaluation-harness PR 4188
    ("The answer is a prime number, so (B).", "B"),
    ("The answer is B. Note that A is a common distractor.", "B"),  # jundot/omlx PR 3668
    ("ANSWER IS D. A is incorrect.", "D"),  # jundot/omlx PR 3668
    ("Answer: C\n\nExplanation: choice A fails", "C"),
    ("The answer is D, not option A", "D"),
    # groq/openbench 348
    ("The calculated answer is 11.\n\nAnswer seems to be A.\n\nAnswer: A\n", "A"),
    ("Answer:\n\nAnswer: C", "C"),  # openai/simple-evals 33
    # NVIDIA-NeMo/Skills PR 1526
    (r"With \boxed{\langle H\rangle \ll \Delta E} so **Answer: D**", "D"),
    (r"\boxed{\text{C}}", "C"),  # NVIDIA-NeMo/Gym PR 1844
    (r"First \boxed{C}, no: \boxed{B: A polygenic risk score}", "B"),  # NVIDIA-NeMo/Gym PR 1844
    ("Answer: **D**", "D"),  # aniri15/OPD-V 2
    ("I considered (A), but it is incorrect. Final answer: D.", "D"),  # aniri15/OPD-V 2
    ("The correct answer is d.", "D"),  # aniri15/OPD-V 2
    ("Answer: I think it is C", "C"),  # antirez/ds4 319
    ("Answer: D, not B", "D"),  # antirez/ds4 321
    ("Answer: It is not B, the answer is D", "D"),  # antirez/ds4 321
    ("Answer: rules out C, leaving D", "D"),  # antirez/ds4 321
    ("Answer:C", "C"),  # marin-community/verifyit tests/test_mcq.py
    ("Answer : C", "C"),  # marin-community/verifyit tests/test_mcq.py
    ("Answer: \\boxed{C}\n", "C"),  # marin-community/verifyit tests/test_mcq.py
    ("**Answer:** C\n", "C"),  # marin-community/verifyit tests/test_mcq.py
    ("Answer: `C`\n", "C"),  # marin-community/verifyit tests/test_mcq.py
    # marin-community/verifyit tests/test_mcq.py
    ("Answer: A\nOn reflection that is wrong.\nAnswer: C\n", "C"),
    # marin-community/verifyit tests/test_mcq.py
    ("I worked through every option and settled on the third one.\nC\n", "C"),
    # marin-community/verifyit tests/test_mcq.py
    ("Answer: B because the evidence supports it", "B"),
    # raybears/cot-transparency tests/data/answer_examples.yaml
    ("Therefore, the best answer is:\n(A) The bus is the second-newest", "A"),
    # raybears/cot-transparency tests/data/answer_examples.yaml
    ("Option B: iron first\nnot in order\n\nThe best answer is:\n(A)", "A"),
    # raybears/cot-transparency tests/data/answer_examples.yaml
    (r"The single most likely answer is: $\boxed{\text{(B) 25\%}}$.", "B"),
    # raybears/cot-transparency tests/data/answer_examples.yaml
    ("(D) is often mispronounced.\n\nThe best answer is: (A) The 20 words", "A"),
    # raybears/cot-transparency tests/data/answer_examples.yaml
    (r"Therefore, the best answer is: \[\boxed{\text{(C) 600 nm}}\].", "C"),
    ("<answer> rome </answer>", "B"),
    (r"\boxed{New York}", "D"),
    (r"\fbox{B}", "B"),
    (r"so $\boxed B$", "B"),
    (r"\boxed {B}", "B"),
    ("A is tempting, but B is correct.", "B"),
    ("A. first\nB. second\nC. third\nTherefore: B", "B"),
    ("The answer is B, a prime number.", "B"),
    ("The answer is B, I think.", "B"),
    ("The answer is A and the others fail.", "A"),
    ("There is no doubt that the answer is C.", "C"),
    ("The others cannot hold so the answer is D.", "D"),
    ("The answer to this question is C", "C"),
    ("Ans: C", "C"),
    ("Thus, option C.", "C"),
    ("The correct choice is C.", "C"),
    ("The correct answer is **C. Oslo**.", "C"),
    ("Option C", "C"),
    ("Rome", "B"),
    ("Answer: Rome", "B"),
    (r"\boxed{\textbf{(C)}\ 12}", "C"),
    (r"\boxed{\text{Option C}}", "C"),
    (r"<think>Perhaps \boxed{A}?</think> The answer is B.", "B"),  # huggingface/trl PR 4563
    (r"<think>So \boxed{A}.</think>", "A"),
    ("Answer: C\nAnswer choice B is not supported.\nMany choose A.", "C"),
    ("B\n\nExplanation: Rome has been the capital since 1871.", "B"),
    ('```json\n{"answer": "B"}\n```', "B"),
    ('{"answer": "B", "explanation": "A is wrong"}', "B"),
    ("So the correct option is B: Rome", "B"),
    ("The answer is Rome rather than Paris.", "B"),
    ("The answer is not Paris but Rome.", "B"),
    ("The answer is Rome (B).", "B"),
    ("B is the right option here.", "B"),
    ("B is correct, and A is incorrect.", "B"),
    ("The answer is B. Wait, let me check again. Yes, it is in Italy.", "B"),
    ("The answer is Rome or Paris.", None),
    ("The answer is Rome, Paris.", None),
    ("The answer is not Rome.", None),
    ("The answer is Roman.", None),
    ("The answer is A prime number, so (B).", "B"),
    ("Antwort:\n\nAntwort: C", None),  # openai/simple-evals 33
    ("A perfect answer cannot be found.", None),  # TIGER-AI-Lab/MMLU-Pro 7
    ("A solution is hard to see.", None),  # TIGER-AI-Lab/MMLU-Pro 7
    ("<answer>A or B or C</answer>", None),  # Liuziyu77/Visual-RFT 79
    ("Answer: A or B", None),
    ("The answer is B, C", None),
    (r"\boxed{A, B}", None),
    (r"\boxed{B and C}", None),
    ("Answer: Banana", None),  # marin-community/verifyit tests/test_mcq.py
    ("Answer: E\n", None),  # marin-community/verifyit tests/test_mcq.py
    ("Answer: 3\n", None),  # marin-community/verifyit tests/test_mcq.py
    ("Answer: \\boxed{B}\n", "B"),  # marin-community/verifyit tests/test_mcq.py
    ("Answer: BC", None),  # marin-community/verifyit tests/test_mcq.py
    ("Answer: B2", None),  # marin-community/verifyit tests/test_mcq.py
    # EleutherAI/lm-evaluation-harness PR 3842
    ("정답: it is hard to say, A, B, C and D all occur", None),
    ("The answer is not A.", None),
    ("I don't think the answer is A. It has another name.", None),
    ("If the answer is A then Paris lies in Italy.", None),
    ("The wrong answer is B.", None),
    ("(B) is right. (A) fails, since it lies in France.", "B"),
    ("A. Paris\nB. Rome\nC. Oslo\nD. New York", None),
    ("So A is a set and D = 5.", None),
    (r"\boxed{C} was a slip, \boxed{A", None),
    (r"\boxed{A + B}", None),
    ("The answer is C = 5", None),
    ("Because of D vitamins", None),
    ("The answer is either B or C.", None),
    ("I have doubts whether (A) or (C) holds.", None),
    ("Answer choice B is not supported.", None),
    ("To see if the answer is C, look at the map.", None),
    ("Answer: Bern", None),
    ("", None),
]
OF_TEN = [
    ("The answer is C because I computed the integral.", "C"),  # jundot/omlx PR 3668
    ("The answer is I.", "I"),  # jundot/omlx PR 3668
    # TIGER-AI-Lab/MMLU-Pro 7
    ("The answer might be C. Also it could be (F). Answer: J. Dog is not one.", "J"),
    ("Answer: I think it is C", "C"),  # antirez/ds4 319
    # NVIDIA-NeMo/Skills PR 1526
    (r"With \boxed{\langle H\rangle \ll \Delta E} so **Answer: D**", "D"),
    ("The answer is an I-beam, so E is right.", "E"),
]

ROWS = [
    *((response, letter, FOUR) for response, letter in OF_FOUR),
    *((response, letter, TEN) for response, letter in OF_TEN),
]
"""Responses, the letters that they answer, None for none, and the choices."""
