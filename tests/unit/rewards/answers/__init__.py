"""Responses with the score that they deserve, scorer by scorer.

A row is (response, ground truth, score). A wrong answer that looks right has score 0 and a ground
truth that some grader, or a careless reader, would find in the response. A comment names the public
thread or the grader whose tests the response is from, in the thread's words or nearly; a row
without one is our own.
"""
