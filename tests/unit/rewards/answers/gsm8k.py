r"""Answers of grade-school problems; rows of FLEXIBLE are for `method: flexible`."""

TAIL = " and the reasoning above confirms this result is consistent." * 8

STRICT = [
    ("2+40=42\n#### 42\n" + TAIL, "42"),  # verl PR 7274
    ("2+40=42\n#### 42\n", "42"),  # verl PR 7274
    ("#### $29.00.", "29"),  # EleutherAI/lm-evaluation-harness 3214
    ("From 2 to -3.\n#### -3", "-3"),  # google-deepmind/proeval PR 19
    ("#### -1,234.5", "-1234.5"),  # google-deepmind/proeval PR 19
    ("#### +3", "3"),  # google-deepmind/proeval PR 19
    ("#### 1/2", "0.5"),  # greynewell/matchspec PR 306
    ("#### m+n = 256+37 = 293", "293"),  # antirez/ds4 319
    ("#### 4 4/9", "40/9"),  # huggingface/Math-Verify tests/test_mixed_number_extraction.py
    ("#### -4 4/9", "-40/9"),  # huggingface/Math-Verify tests/test_mixed_number_extraction.py
    ("#### 10am", "10"),
    ("#### 10/2", "5"),  # greynewell/matchspec PR 306
    ("#### 4 4/0", None),  # huggingface/Math-Verify tests/test_mixed_number_extraction.py
    ("#### 11 + 4/9", None),  # huggingface/Math-Verify tests/test_mixed_number_extraction.py
    ("#### ,", None),  # jundot/omlx PR 3484
    ("2+40=42\n" + TAIL, None),  # verl PR 7274
    ("#### 72 * 2", None),
    ("#### 0/0", None),
]
FLEXIBLE = [
    ("The total is 72 clips, altogether.", "72"),  # jundot/omlx PR 3484
    # EleutherAI/lm-evaluation-harness 3214
    ("...the total cost of Rory's delivery order is $29.00.", "29"),
    # huggingface/Math-Verify tests/test_mixed_number_extraction.py
    ("The answer is 11 + 4/9", None),
    ("10 - 5", None),
    ("10-5", None),
    ("It costs 12345" + "." * 298, None),
    ("pred = 3,1415x926", None),  # stanford-crfm/helm PR 4191
]

ROWS = [
    *((response, number, "strict") for response, number in STRICT),
    *((response, number, "flexible") for response, number in FLEXIBLE),
]
"""Responses, the numbers that they answer, None for none, and the methods."""
