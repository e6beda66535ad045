r"""Answers of grade-school problems; rows of FLEXIBLE are for `method: flexible`."""

TAIL = " and the reasoning above confirms this result is consistent." * 8

STRICT = [
    ("2+40=42\n#### 42\n" + TAIL, "42"),  # verl PR 7274
    ("2+40=42\n#### 42\n", "42"),  # verl PR 7274
    ("#### 72 clips, altogether.", "72"),  # jundot/omlx PR 3484
    ("#### $29.00.", "29"),  # EleutherAI/lm-evaluation-harness 3214
    ("From 2 to -3.\n#### -3", "-3"),  # google-deepmind/proeval PR 19
    ("#### -1,234.5", "-1234.5"),  # google-deepmind/proeval PR 19
    ("#### \u22123", "-3"),  # google-deepmind/proeval PR 19
    ("#### +3", "3"),  # google-deepmind/proeval PR 19
    ("#### 1/2", "0.5"),  # greynewell/matchspec PR 306
    ("#### 293 because m+n = 256+37", "293"),
    ("#### m+n = 256+37 = 293", "293"),  # antirez/ds4 319
    ("#### a+b+c = 12+25+25 = 62", "62"),  # antirez/ds4 319
    ("#### 7,425,000", "7425000"),  # huggingface/Math-Verify tests/test_all.py
    ("#### 1 000", "1000"),  # huggingface/Math-Verify tests/test_all.py
    ("#### 1000.0", "1000"),  # huggingface/Math-Verify tests/test_all.py
    ("#### 1,000.99", "1000.99"),  # huggingface/Math-Verify tests/test_all.py
    ("#### .4", "0.4"),  # huggingface/Math-Verify tests/test_all.py
    ("#### 1,000.99\u20ac", "1000.99"),  # huggingface/Math-Verify tests/test_all.py
    ("#### 1,000.99m\u00b2", "1000.99"),  # huggingface/Math-Verify tests/test_all.py
    ("#### 28 percent", "28"),  # huggingface/Math-Verify tests/test_all.py
    ("#### 28%", "28"),  # huggingface/Math-Verify tests/test_all.py
    ("#### 4 4/9", "40/9"),  # huggingface/Math-Verify tests/test_mixed_number_extraction.py
    ("#### -4 4/9", "-40/9"),  # huggingface/Math-Verify tests/test_mixed_number_extraction.py
    ("#### 11 - the rest is gone", "11"),
    ("#### 13.20%", "13.2"),  # mbzuai-nlp/finchain PR 3
    ("#### 71\n#### 72", "72"),
    ("#### 72\n#### ,", "72"),  # jundot/omlx PR 3484
    ("#### **72**", "72"),
    ("####   72", "72"),
    ("#### 10am", "10"),
    ("#### 72/month", "72"),
    ("#### 72 of 96", "72"),
    ("#### 7,2", None),  # stanford-crfm/helm PR 4191
    ("#### 3,1415x926", None),  # stanford-crfm/helm PR 4191
    ("#### 1,22", None),  # huggingface/Math-Verify tests/test_all.py
    ("#### 1000,99", None),  # huggingface/Math-Verify tests/test_all.py
    ("#### 10/2", "5"),  # greynewell/matchspec PR 306
    ("#### 256+37", None),  # antirez/ds4 319
    ("#### 4 4/0", None),  # huggingface/Math-Verify tests/test_mixed_number_extraction.py
    ("#### 11 - 4/9", None),  # huggingface/Math-Verify tests/test_mixed_number_extraction.py
    ("#### 11 + 4/9", None),  # huggingface/Math-Verify tests/test_mixed_number_extraction.py
    ("#### 42\nQuestion: two?\n#### 2", "2"),  # sgl-project/sglang PR 29933
    ("#### ,", None),  # jundot/omlx PR 3484
    ("2+40=42\n" + TAIL, None),  # verl PR 7274
    ("#### 10-5", None),
    ("#### 3:30", None),
    ("#### 5k", None),
    ("#### 1e3", None),
    ("#### 72^2", None),
    ("#### 72.5.1", None),
    ("#### 72 * 2", None),
    ("#### 72.01", "72.01"),
    ("#### 720", "720"),
    ("#### 0/0", None),
    ("#### seventy-two, that is 72", None),
    ("####72", None),
    ("The answer is 72", None),
    ("", None),
]
FLEXIBLE = [
    ("The total is 72 clips, altogether.", "72"),  # jundot/omlx PR 3484
    # EleutherAI/lm-evaluation-harness 3214
    ("...the total cost of Rory's delivery order is $29.00.", "29"),
    ("The final value is 13.20%", "13.2"),  # mbzuai-nlp/finchain PR 3
    # huggingface/Math-Verify tests/test_all.py
    ("the number is not 10 which is 1,000.99\u20ac", "1000.99"),
    ("not 10, it's 1,000.99m\u00b2", "1000.99"),  # huggingface/Math-Verify tests/test_all.py
    # huggingface/Math-Verify tests/test_mixed_number_extraction.py
    ("The answer is 4 4/9.", "40/9"),
    # huggingface/Math-Verify tests/test_mixed_number_extraction.py
    ("There are 4 objects and 4/9 remain.", "4/9"),
    ("m+n = 256+37 = 293", "293"),  # antirez/ds4 319
    ("so 72 it is .", "72"),
    ("The answer is **72**", "72"),
    # huggingface/Math-Verify tests/test_mixed_number_extraction.py
    ("The answer is 11 + 4/9", None),
    ("10 - 5", None),
    ("10-5", None),
    ("It costs 12345" + "." * 298, None),
    ("pred = 3,1415x926", None),  # stanford-crfm/helm PR 4191
    ("The total is 72 clips, altogether, of 3.", "3"),  # jundot/omlx PR 3484
]

ROWS = [
    *((response, number, "strict") for response, number in STRICT),
    *((response, number, "flexible") for response, number in FLEXIBLE),
]
"""Responses, the numbers that they answer, None for none, and the methods."""
