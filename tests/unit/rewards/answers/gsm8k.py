r"""Answers of grade-school problems; rows of FLEXIBLE are for `method: flexible`."""

VERL = "verl PR 7274"
OMLX = "jundot/omlx PR 3484"
LM_EVAL = "EleutherAI/lm-evaluation-harness 3214"
PROEVAL = "google-deepmind/proeval PR 19"
HELM = "stanford-crfm/helm PR 4191"
MCPBR = "greynewell/matchspec PR 306"
DS4 = "antirez/ds4 319"
SGLANG = "sgl-project/sglang PR 29933"
MATH_VERIFY = "huggingface/Math-Verify tests/test_all.py"
MIXED = "huggingface/Math-Verify tests/test_mixed_number_extraction.py"
FINCHAIN = "mbzuai-nlp/finchain PR 3"

TAIL = " and the reasoning above confirms this result is consistent." * 8

STRICT = [
    ("2+40=42\n#### 42\n" + TAIL, "42", VERL),
    ("2+40=42\n#### 42\n", "42", VERL),
    ("#### 72 clips, altogether.", "72", OMLX),
    ("#### $29.00.", "29", LM_EVAL),
    ("From 2 to -3.\n#### -3", "-3", PROEVAL),
    ("#### -1,234.5", "-1234.5", PROEVAL),
    ("#### \u22123", "-3", PROEVAL),
    ("#### +3", "3", PROEVAL),
    ("#### 1/2", "0.5", MCPBR),
    ("#### 293 because m+n = 256+37", "293", ""),
    ("#### m+n = 256+37 = 293", "293", DS4),
    ("#### a+b+c = 12+25+25 = 62", "62", DS4),
    ("#### 7,425,000", "7425000", MATH_VERIFY),
    ("#### 1 000", "1000", MATH_VERIFY),
    ("#### 1000.0", "1000", MATH_VERIFY),
    ("#### 1,000.99", "1000.99", MATH_VERIFY),
    ("#### .4", "0.4", MATH_VERIFY),
    ("#### 1,000.99\u20ac", "1000.99", MATH_VERIFY),
    ("#### 1,000.99m\u00b2", "1000.99", MATH_VERIFY),
    ("#### 28 percent", "28", MATH_VERIFY),
    ("#### 28%", "28", MATH_VERIFY),
    ("#### 4 4/9", "40/9", MIXED),
    ("#### -4 4/9", "-40/9", MIXED),
    ("#### 11 - the rest is gone", "11", ""),
    ("#### 13.20%", "13.2", FINCHAIN),
    ("#### 71\n#### 72", "72", ""),
    ("#### 72\n#### ,", "72", OMLX),
    ("#### **72**", "72", ""),
    ("####   72", "72", ""),
    ("#### 10am", "10", ""),
    ("#### 72/month", "72", ""),
    ("#### 72 of 96", "72", ""),
    ("#### 7,2", None, HELM),
    ("#### 3,1415x926", None, HELM),
    ("#### 1,22", None, MATH_VERIFY),
    ("#### 1000,99", None, MATH_VERIFY),
    ("#### 10/2", "5", MCPBR),
    ("#### 256+37", None, DS4),
    ("#### 4 4/0", None, MIXED),
    ("#### 11 - 4/9", None, MIXED),
    ("#### 11 + 4/9", None, MIXED),
    ("#### 42\nQuestion: two?\n#### 2", "2", SGLANG),
    ("#### ,", None, OMLX),
    ("2+40=42\n" + TAIL, None, VERL),
    ("#### 10-5", None, ""),
    ("#### 3:30", None, ""),
    ("#### 5k", None, ""),
    ("#### 1e3", None, ""),
    ("#### 72^2", None, ""),
    ("#### 72.5.1", None, ""),
    ("#### 72 * 2", None, ""),
    ("#### 72.01", "72.01", ""),
    ("#### 720", "720", ""),
    ("#### 0/0", None, ""),
    ("#### seventy-two, that is 72", None, ""),
    ("####72", None, ""),
    ("The answer is 72", None, ""),
    ("", None, ""),
]
FLEXIBLE = [
    ("The total is 72 clips, altogether.", "72", OMLX),
    ("...the total cost of Rory's delivery order is $29.00.", "29", LM_EVAL),
    ("The final value is 13.20%", "13.2", FINCHAIN),
    ("the number is not 10 which is 1,000.99\u20ac", "1000.99", MATH_VERIFY),
    ("not 10, it's 1,000.99m\u00b2", "1000.99", MATH_VERIFY),
    ("The answer is 4 4/9.", "40/9", MIXED),
    ("There are 4 objects and 4/9 remain.", "4/9", MIXED),
    ("m+n = 256+37 = 293", "293", DS4),
    ("so 72 it is .", "72", ""),
    ("The answer is **72**", "72", ""),
    ("The answer is 11 + 4/9", None, MIXED),
    ("10 - 5", None, ""),
    ("10-5", None, ""),
    ("It costs 12345" + "." * 298, None, ""),
    ("pred = 3,1415x926", None, HELM),
    ("The total is 72 clips, altogether, of 3.", "3", OMLX),
]

ROWS = [
    *((response, number, source, "strict") for response, number, source in STRICT),
    *((response, number, source, "flexible") for response, number, source in FLEXIBLE),
]
"""Responses, the numbers that they answer, None for none, their sources and the methods."""
