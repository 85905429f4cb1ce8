"""`hip batch`: the same questions of many files, rows in one file, nothing done twice.

Knows files, questions and rows; the model's work is pipeline.py's.
"""
