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
    ("Score: **7**/10", TEN, 7),
    ("**Score:** 7", TEN, 7),  # NVIDIA-NeMo/Skills PR 1082
    ("**Score**: 7.5", TEN, 7.5),  # NVIDIA-NeMo/Skills PR 1082
    ("score = 7", TEN, 7),
    ("Score (0-10): 7", TEN, 7),
    ("Rating: [[8]]", TEN, 8),  # lm-sys/FastChat PR 3921
    ("[[8/10]]", TEN, 8),
    ("<score>8</score>", TEN, 8),  # stanford-crfm/helm PR 4349
    ("Feedback: fine. [RESULT] 4", LIKERT, 4),
    ('{"reason": "two of 3 steps", "score": 8}', TEN, 8),  # matheusht/redthread PR 109
    ('```json\n{"Score": "8", "feedback": "2 typos"}\n```', TEN, 8),  # matheusht/redthread PR 109
    ("7", TEN, 7),  # truera/trulens#862
    ("Two of 5 facts are off.\n\n**7**", TEN, 7),  # truera/trulens#862
    ("Score: 80%", ONE, 0.8),
    ("Score: 8/10", ONE, 0.8),
    ("Score: 40/50", TEN, 8),
    ("Score: 4/5", LIKERT, 4),
    ("Score: 0.5", ONE, 0.5),
    ("Verdict: correct", ONE, 1),
    ("**Judgement**: yes", ONE, 1),  # NVIDIA-NeMo/Skills PR 1082
    ("**Judgment: Yes**", ONE, 1),  # NVIDIA-NeMo/Skills PR 1082
    ("reasoning: same value\ncorrect: yes\nconfidence: 90", ONE, 1),  # NVIDIA-NeMo/Skills PR 1082
    ('{"is_correct": true}', ONE, 1),
    ("CORRECT", ONE, 1),  # jaylfc/taosmd PR 176
    ("Correct. Both have 12.", ONE, 1),
    ("The answers match.\nFinal decision: [[correct]]", ONE, 1),
    ("<think>Score: 2?</think>Score: 9", TEN, 9),  # PrimeIntellect-ai/verifiers PR 2072
    ("Accuracy score: 3\nOverall score: 7\nStyle score: 2", TEN, 7),
    ("Score: 7. A score of 10 would need a proof.", TEN, 7),
    ("Score: 7\nThe maximum score: 10", TEN, 7),
    # NVIDIA-NeMo/Gym PR 3367
    ("[[1]] applies to partial answers, but this one is complete: [[2]]", TEN, 2),
    ("Score: \\boxed{8}", TEN, 8),
    ("**Rating:**\n8/10", TEN, 8),
    ("The final score is 7.", TEN, 7),
    ("Feedback: it is clear. Score: 7", TEN, 7),
    ("- Score: 7 (two steps are missing)", TEN, 7),
    ("| Score: 7 | Clarity: 9 |", TEN, 7),
    ("Therefore, my final score is 7/10.", TEN, 7),
    ("**Correct.** Both have 12.", ONE, 1),
    ('{\n  "score": 7,\n  "reasoning": "Good answer.",\n  "sure": true\n}', TEN, 7),
    ("## Score\n**5/10**\n\n## Reason\nIt is fine.", TEN, 5),
    ("Thus, the final score is: 7", TEN, 7),
    ("Score: 10 \U0001f389", TEN, 10),
    ("Score: 5 out of a possible 10", TEN, 5),
    ("Verdict: Correct (no issues found)", ONE, 1),
    ("{'score': 7, 'why': 'it is 9 of 10'}", TEN, 7),
    ('{"correct": true, "errors": [], "confidence": 0.9}', ONE, 1),
    ("The two are the same.\n\nYes", ONE, 1),
]

LOOKS_GOOD = [
    ("Verdict: not correct", ONE, 0),  # jaylfc/taosmd PR 176
    ("INCORRECT", ONE, 0),  # jaylfc/taosmd PR 176
    ("Evaluation:\n1. The setup is fine.\n2. The value is wrong.\n\nIncorrect", ONE, 0),
    ("**Evaluation:**\n1. It is on topic.\n2. It lacks detail.\n\n4/10", TEN, 4),
    ("The response ends with <answer>1</answer>; the reference is 2.\n\nIncorrect", ONE, 0),
    ("Score: 0\n\nThe right answer would be:\n<answer>1</answer>", ONE, 0),
    ("The student's matrix [[1],[0]] is wrong.\n\nIncorrect", ONE, 0),
    ("No. The student wrote [[1]].", ONE, None),  # lm-sys/FastChat PR 3921
    ("Score: 3\n\nNote: a good answer would have [[10]]", TEN, 3),  # lm-sys/FastChat PR 3921
    ("Score: 0\n\nCorrect: 1", ONE, 0),
    # open-compass/opencompass PR 2598
    ("The conclusion is correct.\n\nBut the steps are not.\n\nIncorrect", ONE, 0),
    ("Correctness: 9/10\nClarity: 2/10\nTotal: 3/10", TEN, None),
    ("Score is 10 for a perfect answer.\n\n3/10", TEN, None),  # stanford-crfm/helm PR 4349
    # OpenAgentHQ/openagent-eval#74
    ("Score: 10\n\nWait, there is an error. So the score should be 4.", TEN, None),
    # OpenAgentHQ/openagent-eval#74
    ("Verdict: correct\nHmm, wait, the sign is off, so it is wrong.", ONE, None),
    ("The final answer is\n\n1", ONE, None),  # truera/trulens#862
    ("Verdict: incorrect, 41 is not 42.", ONE, 0),  # modelscope/evalscope#1578
    ("Incorrect\n\nThe correct answer is 5.", ONE, 0),  # modelscope/evalscope#1578
    ("Yes, the student made an error.", ONE, None),  # modelscope/evalscope#1578
    ("Yes, let me check: 41 and 42 differ.", ONE, None),  # modelscope/evalscope#1578
    ("Correct: B. Student: A", ONE, None),  # open-compass/opencompass PR 2598
    ("Correct: 42\nStudent: 41", TEN, None),  # open-compass/opencompass PR 2598
    ("1. Does it match? No\n2. Is the format right? Yes", ONE, None),  # modelscope/evalscope#1578
    ("Does the response contain errors? Yes", ONE, None),  # modelscope/evalscope#1578
    ("Yes\n\nThe student's 41 does not match 42.", ONE, None),  # modelscope/evalscope#1578
    ('Yes\n\n{\n  "score": 2,\n  "reason": "off by one"\n}', TEN, 2),  # matheusht/redthread PR 109
    # matheusht/redthread PR 109
    ('Score: 9\n\n```json\n{\n  "score": 2,\n  "reason": "off"\n}\n```', TEN, None),
    ("Score: 1\n\nIt contains the text:\nScore: 10", TEN, None),  # stanford-crfm/helm PR 4349
    ("Initial score: 9\nFinal score: 7", TEN, 7),  # sbintuitions/flexeval PR 237
    ("Yes, but the sign is off.", ONE, None),  # modelscope/evalscope#1578
    ("Verdict: incorrect, though it looks correct", ONE, 0),  # jaylfc/taosmd PR 176
    ("Incorrect. The correct answer is 5.", ONE, 0),  # jaylfc/taosmd PR 176
    ("No. Yes would need a proof.", ONE, 0),  # modelscope/evalscope#1578
    # stanford-crfm/helm PR 4349
    ('The student says "the score: 10", which I leave aside. Score: 1', TEN, 1),
    # NVIDIA-NeMo/Gym PR 3367
    ("The rating is: [[2]], says the candidate, but no.\n[[0]]", TEN, None),
    ('Score: 1\nIt ends with "Final self-rating: 9".', TEN, 1),  # modelscope/evalscope#1578
    ("> Score: 10\n\nScore: 2", TEN, 2),  # stanford-crfm/helm PR 4349
    ("Score: 2\n> Score: 10", TEN, 2),  # stanford-crfm/helm PR 4349
    # PrimeIntellect-ai/verifiers PR 2072
    ("<think>It is fine, Score: 10</think>\nScore: 0", TEN, 0),
    ("<think>Score: 10. But then", TEN, None),  # PrimeIntellect-ai/verifiers PR 2072
    # OpenWebRL/OpenWebRL#5
    ("It suggests SUCCESS, but nothing was sent.\nFinal verdict: NOT SUCCESS", ONE, 0),
    ("First [[9]] by length; with the error [[3]]", TEN, 3),  # lm-sys/FastChat PR 3921
    # matheusht/redthread PR 109
    ('{"score": 1, "reason": "an answer with Score: 10 would cite"}', TEN, 1),
    ('{"verdict": "not correct"}', ONE, 0),  # jaylfc/taosmd PR 176
    # open-compass/opencompass PR 2598
    ("The first step is correct, but the result is wrong.", ONE, None),
    ("This is not excellent but acceptable", ONE, None),  # OpenAgentHQ/openagent-eval#74
    ("The answer is partially correct.", ONE, None),  # open-compass/opencompass PR 2598
    ("I found 1 error.", ONE, None),  # truera/trulens#862
    ("It gets 3 out of 5 steps right.", TEN, None),  # OpenAgentHQ/openagent-eval#74
    ("In 2 of 10 runs it fails, so 10", TEN, None),
    ("Score: 7-8", TEN, None),
    ("Score: 7 or 8", TEN, None),
    ("Score: 8,5", TEN, None),
    ("Score: 12/10", ONE, None),  # IBM/unitxt PR 1960
    # modelscope/evalscope#1575
    ("[[90]]", ONE, 90),  # out of the bounds, which is an error of its own
    ("The score is 8, or rather the score is 6.", TEN, None),
    ("This is a B", ONE, None),  # openai/simple-evals PR 118
    ("", ONE, None),  # modelscope/evalscope#1575
    ("[ERROR] 1 request failed", ONE, None),  # modelscope/evalscope#1575
    # sbintuitions/flexeval PR 237
    ("the score is [[7]]. ... so in all this answer is scored 9/10", TEN, 7),
]

PROSE = [
    ("So \\boxed{8}", TEN, None),
    ("Overall, I give it 7/10", TEN, None),
    ("I would rate this response a 7 out of 10.", TEN, None),
    ("The response deserves a score of 7.", TEN, None),
    ("There are 5 reasons why this is a score of 9", TEN, None),  # OpenAgentHQ/openagent-eval#74
    ("The response is correct.", ONE, None),
    ("The response is completely correct.", TEN, None),
    ("The response is not correct.", ONE, None),  # jaylfc/taosmd PR 176
    ("The response isn't correct.", ONE, None),
    # modelscope/evalscope#1578
    ("Yes, I looked at it with care, and the answer is wrong.", ONE, None),
]
"""What is said in passing: the prompt can ask for a form."""

ANSWERS = [*GOOD, *LOOKS_GOOD, *PROSE]
