"""Answers of judges, the largest score of their scale (the smallest is 0 but for LIKERT), and the
verdict; None where none is clear, so that the judge is asked again.

A source is a public thread; "" is an answer of ours.
"""

TEN = (0.0, 10.0)
ONE = (0.0, 1.0)
LIKERT = (1.0, 5.0)

FASTCHAT = "lm-sys/FastChat PR 3921"
FINANCE = "NVIDIA-NeMo/Gym PR 3367"
SKILLS = "NVIDIA-NeMo/Skills PR 1082"
RUBRIC = "PrimeIntellect-ai/verifiers PR 2072"
HELM = "stanford-crfm/helm PR 4349"
COMPASS = "open-compass/opencompass PR 2598"
SCOPE = "modelscope/evalscope#1578"
CLOSED = "modelscope/evalscope#1575"
WEB = "OpenWebRL/OpenWebRL#5"
FRAGILE = "OpenAgentHQ/openagent-eval#74"
TAOS = "jaylfc/taosmd PR 176"
FLEX = "sbintuitions/flexeval PR 237"
EVALS = "openai/simple-evals PR 118"
TRULENS = "truera/trulens#862"
UNITXT = "IBM/unitxt PR 1960"
RED = "matheusht/redthread PR 109"

GOOD = [
    ("Score: 7/10", TEN, 7, ""),
    ("Score: 7 out of 10.", TEN, 7, ""),
    ("Score: **7**/10", TEN, 7, ""),
    ("**Score:** 7", TEN, 7, SKILLS),
    ("**Score**: 7.5", TEN, 7.5, SKILLS),
    ("score = 7", TEN, 7, ""),
    ("Score (0-10): 7", TEN, 7, ""),
    ("Rating: [[8]]", TEN, 8, FASTCHAT),
    ("[[8/10]]", TEN, 8, ""),
    ("<score>8</score>", TEN, 8, HELM),
    ("Feedback: fine. [RESULT] 4", LIKERT, 4, ""),
    ('{"reason": "two of 3 steps", "score": 8}', TEN, 8, RED),
    ('```json\n{"Score": "8", "feedback": "2 typos"}\n```', TEN, 8, RED),
    ("7", TEN, 7, TRULENS),
    ("Two of 5 facts are off.\n\n**7**", TEN, 7, TRULENS),
    ("Score: 80%", ONE, 0.8, ""),
    ("Score: 8/10", ONE, 0.8, ""),
    ("Score: 40/50", TEN, 8, ""),
    ("Score: 4/5", LIKERT, 4, ""),
    ("Score: 0.5", ONE, 0.5, ""),
    ("Verdict: correct", ONE, 1, ""),
    ("**Judgement**: yes", ONE, 1, SKILLS),
    ("**Judgment: Yes**", ONE, 1, SKILLS),
    ("reasoning: same value\ncorrect: yes\nconfidence: 90", ONE, 1, SKILLS),
    ('{"is_correct": true}', ONE, 1, ""),
    ("CORRECT", ONE, 1, TAOS),
    ("Correct. Both have 12.", ONE, 1, ""),
    ("The answers match.\nFinal decision: [[correct]]", ONE, 1, ""),
    ("<think>Score: 2?</think>Score: 9", TEN, 9, RUBRIC),
    ("Accuracy score: 3\nOverall score: 7\nStyle score: 2", TEN, 7, ""),
    ("Score: 7. A score of 10 would need a proof.", TEN, 7, ""),
    ("Score: 7\nThe maximum score: 10", TEN, 7, ""),
    ("[[1]] applies to partial answers, but this one is complete: [[2]]", TEN, 2, FINANCE),
    ("Score: \\boxed{8}", TEN, 8, ""),
    ("**Rating:**\n8/10", TEN, 8, ""),
    ("The final score is 7.", TEN, 7, ""),
    ("Feedback: it is clear. Score: 7", TEN, 7, ""),
    ("- Score: 7 (two steps are missing)", TEN, 7, ""),
    ("| Score: 7 | Clarity: 9 |", TEN, 7, ""),
    ("Therefore, my final score is 7/10.", TEN, 7, ""),
    ("**Correct.** Both have 12.", ONE, 1, ""),
    ('{\n  "score": 7,\n  "reasoning": "Good answer.",\n  "sure": true\n}', TEN, 7, ""),
    ("## Score\n**5/10**\n\n## Reason\nIt is fine.", TEN, 5, ""),
    ("Thus, the final score is: 7", TEN, 7, ""),
    ("Score: 10 \U0001f389", TEN, 10, ""),
    ("Score: 5 out of a possible 10", TEN, 5, ""),
    ("Verdict: Correct (no issues found)", ONE, 1, ""),
    ("{'score': 7, 'why': 'it is 9 of 10'}", TEN, 7, ""),
    ('{"correct": true, "errors": [], "confidence": 0.9}', ONE, 1, ""),
    ("The two are the same.\n\nYes", ONE, 1, ""),
]

LOOKS_GOOD = [
    ("Verdict: not correct", ONE, 0, TAOS),
    ("INCORRECT", ONE, 0, TAOS),
    ("Evaluation:\n1. The setup is fine.\n2. The value is wrong.\n\nIncorrect", ONE, 0, ""),
    ("**Evaluation:**\n1. It is on topic.\n2. It lacks detail.\n\n4/10", TEN, 4, ""),
    ("The response ends with <answer>1</answer>; the reference is 2.\n\nIncorrect", ONE, 0, ""),
    ("Score: 0\n\nThe right answer would be:\n<answer>1</answer>", ONE, 0, ""),
    ("The student's matrix [[1],[0]] is wrong.\n\nIncorrect", ONE, 0, ""),
    ("No. The student wrote [[1]].", ONE, None, FASTCHAT),
    ("Score: 3\n\nNote: a good answer would have [[10]]", TEN, 3, FASTCHAT),
    ("Score: 0\n\nCorrect: 1", ONE, 0, ""),
    ("The conclusion is correct.\n\nBut the steps are not.\n\nIncorrect", ONE, 0, COMPASS),
    ("Correctness: 9/10\nClarity: 2/10\nTotal: 3/10", TEN, None, ""),
    ("Score is 10 for a perfect answer.\n\n3/10", TEN, None, HELM),
    ("Score: 10\n\nWait, there is an error. So the score should be 4.", TEN, None, FRAGILE),
    ("Verdict: correct\nHmm, wait, the sign is off, so it is wrong.", ONE, None, FRAGILE),
    ("The final answer is\n\n1", ONE, None, TRULENS),
    ("Verdict: incorrect, 41 is not 42.", ONE, 0, SCOPE),
    ("Incorrect\n\nThe correct answer is 5.", ONE, 0, SCOPE),
    ("Yes, the student made an error.", ONE, None, SCOPE),
    ("Yes, let me check: 41 and 42 differ.", ONE, None, SCOPE),
    ("Correct: B. Student: A", ONE, None, COMPASS),
    ("Correct: 42\nStudent: 41", TEN, None, COMPASS),
    ("1. Does it match? No\n2. Is the format right? Yes", ONE, None, SCOPE),
    ("Does the response contain errors? Yes", ONE, None, SCOPE),
    ("Yes\n\nThe student's 41 does not match 42.", ONE, None, SCOPE),
    ('Yes\n\n{\n  "score": 2,\n  "reason": "off by one"\n}', TEN, 2, RED),
    ('Score: 9\n\n```json\n{\n  "score": 2,\n  "reason": "off"\n}\n```', TEN, None, RED),
    ("Score: 1\n\nIt contains the text:\nScore: 10", TEN, None, HELM),
    ("Initial score: 9\nFinal score: 7", TEN, 7, FLEX),
    ("Yes, but the sign is off.", ONE, None, SCOPE),
    ("Verdict: incorrect, though it looks correct", ONE, 0, TAOS),
    ("Incorrect. The correct answer is 5.", ONE, 0, TAOS),
    ("No. Yes would need a proof.", ONE, 0, SCOPE),
    ('The student says "the score: 10", which I leave aside. Score: 1', TEN, 1, HELM),
    ("The rating is: [[2]], says the candidate, but no.\n[[0]]", TEN, None, FINANCE),
    ('Score: 1\nIt ends with "Final self-rating: 9".', TEN, 1, SCOPE),
    ("> Score: 10\n\nScore: 2", TEN, 2, HELM),
    ("Score: 2\n> Score: 10", TEN, 2, HELM),
    ("<think>It is fine, Score: 10</think>\nScore: 0", TEN, 0, RUBRIC),
    ("<think>Score: 10. But then", TEN, None, RUBRIC),
    ("It suggests SUCCESS, but nothing was sent.\nFinal verdict: NOT SUCCESS", ONE, 0, WEB),
    ("First [[9]] by length; with the error [[3]]", TEN, 3, FASTCHAT),
    ('{"score": 1, "reason": "an answer with Score: 10 would cite"}', TEN, 1, RED),
    ('{"verdict": "not correct"}', ONE, 0, TAOS),
    ("The first step is correct, but the result is wrong.", ONE, None, COMPASS),
    ("This is not excellent but acceptable", ONE, None, FRAGILE),
    ("The answer is partially correct.", ONE, None, COMPASS),
    ("I found 1 error.", ONE, None, TRULENS),
    ("It gets 3 out of 5 steps right.", TEN, None, FRAGILE),
    ("In 2 of 10 runs it fails, so 10", TEN, None, ""),
    ("Score: 7-8", TEN, None, ""),
    ("Score: 7 or 8", TEN, None, ""),
    ("Score: 8,5", TEN, None, ""),
    ("Score: 12/10", ONE, None, UNITXT),
    ("[[90]]", ONE, 90, CLOSED),  # out of the bounds, which is an error of its own
    ("The score is 8, or rather the score is 6.", TEN, None, ""),
    ("This is a B", ONE, None, EVALS),
    ("", ONE, None, CLOSED),
    ("[ERROR] 1 request failed", ONE, None, CLOSED),
    ("the score is [[7]]. ... so in all this answer is scored 9/10", TEN, 7, FLEX),
]

PROSE = [
    ("So \\boxed{8}", TEN, None, ""),
    ("Overall, I give it 7/10", TEN, None, ""),
    ("I would rate this response a 7 out of 10.", TEN, None, ""),
    ("The response deserves a score of 7.", TEN, None, ""),
    ("There are 5 reasons why this is a score of 9", TEN, None, FRAGILE),
    ("The response is correct.", ONE, None, ""),
    ("The response is completely correct.", TEN, None, ""),
    ("The response is not correct.", ONE, None, TAOS),
    ("The response isn't correct.", ONE, None, ""),
    ("Yes, I looked at it with care, and the answer is wrong.", ONE, None, SCOPE),
]
"""What is said in passing: the prompt can ask for a form."""

ANSWERS = [*GOOD, *LOOKS_GOOD, *PROSE]
