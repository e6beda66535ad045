"""Answers of judges, the largest score of their scale (the smallest is 0 but for LIKERT), and the
verdict; None where none is clear, so that the judge is asked again.

A comment names a public thread; an answer without one is ours.
"""

TEN = (0.0, 10.0)
ONE = (0.0, 1.0)
LIKERT = (1.0, 5.0)


GOOD = [
    ("Score: 7/10", TEN, 7),
    ("Score: 7 out of 10.", TEN, 7),
    ("score = 7", TEN, 7),
    ("<score>8</score>", TEN, 8),  # stanford-crfm/helm PR 4349
    ("Feedback: fine. [RESULT] 4", LIKERT, 4),
    ('{"reason": "two of 3 steps", "score": 8}', TEN, 8),  # matheusht/redthread PR 109
    ('```json\n{"Score": "8", "feedback": "2 typos"}\n```', TEN, 8),  # matheusht/redthread PR 109
    ("Two of 5 facts are off.\n\n**7**", TEN, 7),  # truera/trulens#862
    ("Score: 80%", ONE, 0.8),
    ("Score: 8/10", ONE, 0.8),
    ("Score: 4/5", LIKERT, 4),
    ("Verdict: correct", ONE, 1),
    ("**Judgement**: yes", ONE, 1),  # NVIDIA-NeMo/Skills PR 1082
    ("**Judgment: Yes**", ONE, 1),  # NVIDIA-NeMo/Skills PR 1082
    ("reasoning: same value\ncorrect: yes\nconfidence: 90", ONE, 1),  # NVIDIA-NeMo/Skills PR 1082
    ('{"is_correct": true}', ONE, 1),
    ("CORRECT", ONE, 1),  # jaylfc/taosmd PR 176
    ("Correct. Both have 12.", ONE, 1),
    ("Accuracy score: 3\nOverall score: 7\nStyle score: 2", TEN, 7),
    # NVIDIA-NeMo/Gym PR 3367
    ("[[1]] applies to partial answers, but this one is complete: [[2]]", TEN, 2),
    ("Score: \\boxed{8}", TEN, 8),
    ("The final score is 7.", TEN, 7),
    ("Feedback: it is clear. Score: 7", TEN, 7),
    ("- Score: 7 (two steps are missing)", TEN, 7),
    ("| Score: 7 | Clarity: 9 |", TEN, 7),
    ("Therefore, my final score is 7/10.", TEN, 7),
    ("**Correct.** Both have 12.", ONE, 1),
    ("## Score\n**5/10**\n\n## Reason\nIt is fine.", TEN, 5),
    ("Thus, the final score is: 7", TEN, 7),
    ("Score: 5 out of a possible 10", TEN, 5),
    ("Verdict: Correct (no issues found)", ONE, 1),
    ("{'score': 7, 'why': 'it is 9 of 10'}", TEN, 7),
    ('{"correct": true, "errors": [], "confidence": 0.9}', ONE, 1),
]

LOOKS_GOOD = [
    ("INCORRECT", ONE, 0),  # jaylfc/taosmd PR 176
    ("Evaluation:\n1. The setup is fine.\n2. The value is wrong.\n\nIncorrect", ONE, 0),
    ("No. The student wrote [[1]].", ONE, None),  # lm-sys/FastChat PR 3921
    ("Score is 10 for a perfect answer.\n\n3/10", TEN, None),  # stanford-crfm/helm PR 4349
    # OpenAgentHQ/openagent-eval#74
    ("Score: 10\n\nWait, there is an error. So the score should be 4.", TEN, None),
    # OpenAgentHQ/openagent-eval#74
    ("Verdict: correct\nHmm, wait, the sign is off, so it is wrong.", ONE, None),
    ("The final answer is\n\n1", ONE, None),  # truera/trulens#862
    ("Verdict: incorrect, 41 is not 42.", ONE, 0),  # modelscope/evalscope#1578
    ("Incorrect\n\nThe correct answer is 5.", ONE, 0),  # modelscope/evalscope#1578
    ("Yes\n\nThe student's 41 does not match 42.", ONE, None),  # modelscope/evalscope#1578
    # matheusht/redthread PR 109
    ('Score: 9\n\n```json\n{\n  "score": 2,\n  "reason": "off"\n}\n```', TEN, None),
    ("Verdict: incorrect, though it looks correct", ONE, 0),  # jaylfc/taosmd PR 176
    ("No. Yes would need a proof.", ONE, 0),  # modelscope/evalscope#1578
    # stanford-crfm/helm PR 4349
    ('The student says "the score: 10", which I leave aside. Score: 1', TEN, 1),
    # NVIDIA-NeMo/Gym PR 3367
    ("The rating is: [[2]], says the candidate, but no.\n[[0]]", TEN, None),
    # OpenWebRL/OpenWebRL#5
    ("It suggests SUCCESS, but nothing was sent.\nFinal verdict: NOT SUCCESS", ONE, 0),
    ("First [[9]] by length; with the error [[3]]", TEN, 3),  # lm-sys/FastChat PR 3921
    ('{"verdict": "not correct"}', ONE, 0),  # jaylfc/taosmd PR 176
    ("Score: 12/10", ONE, None),  # IBM/unitxt PR 1960
    ("The score is 8, or rather the score is 6.", TEN, None),
]

PROSE = []
"""What is said in passing: the prompt can ask for a form."""

ANSWERS = [*GOOD, *LOOKS_GOOD, *PROSE]
