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

STRICT_RIGHT = [
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
]
STRICT_WRONG = [
    ("#### 7,2", "72", HELM),
    ("#### 3,1415x926", "31415", HELM),
    ("#### 3,1415x926", "3", HELM),
    ("#### 1,22", "122", MATH_VERIFY),
    ("#### 1000,99", "100099", MATH_VERIFY),
    ("#### 1 000", "1", MATH_VERIFY),
    ("#### 1/2", "1", MCPBR),
    ("#### 10/2", "10", MCPBR),
    ("#### m+n = 256+37 = 293", "256", DS4),
    ("#### 293 because m+n = 256+37", "37", ""),
    ("#### 256+37", "256", DS4),
    ("#### 256+37", "293", DS4),
    ("#### 4 4/9", "4", MIXED),
    ("#### 4 4/0", "4", MIXED),
    ("#### 11 - 4/9", "11", MIXED),
    ("#### 11 + 4/9", "11", MIXED),
    ("#### 42\nQuestion: two?\n#### 2", "42", SGLANG),
    ("From 2 to -3.\n#### -3", "3", PROEVAL),
    ("#### -1,234.5", "1234.5", PROEVAL),
    ("#### ,", "0", OMLX),
    ("2+40=42\n" + TAIL, "42", VERL),
    ("#### 10-5", "10", ""),
    ("#### 10-5", "5", ""),
    ("#### 3:30", "3", ""),
    ("#### 5k", "5", ""),
    ("#### 1e3", "1", ""),
    ("#### 72^2", "72", ""),
    ("#### 72.5.1", "72.5", ""),
    ("#### 72 * 2", "72", ""),
    ("#### 72.01", "72", ""),
    ("#### 720", "72", ""),
    ("#### 0/0", "0", ""),
    ("#### seventy-two, that is 72", "72", ""),
    ("####72", "72", ""),
    ("The answer is 72", "72", ""),
    ("", "0", ""),
]
FLEXIBLE_RIGHT = [
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
]
FLEXIBLE_WRONG = [
    ("The answer is 4 4/9.", "4", MIXED),
    ("The answer is 11 + 4/9", "4/9", MIXED),
    ("10 - 5", "5", ""),
    ("10-5", "-5", ""),
    ("It costs 12345" + "." * 298, "45", ""),
    ("pred = 3,1415x926", "31415926", HELM),
    ("The total is 72 clips, altogether, of 3.", "72", OMLX),
]

ROWS = [
    *((response, truth, 1.0, source, "strict") for response, truth, source in STRICT_RIGHT),
    *((response, truth, 0.0, source, "strict") for response, truth, source in STRICT_WRONG),
    *((response, truth, 1.0, source, "flexible") for response, truth, source in FLEXIBLE_RIGHT),
    *((response, truth, 0.0, source, "flexible") for response, truth, source in FLEXIBLE_WRONG),
]
