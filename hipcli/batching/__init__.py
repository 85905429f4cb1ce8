"""`hip batch`: many files, the same questions of each, rows in one file; what an interrupted run left undone the next one does.

Knows files, questions and rows; the model's work is pipeline.py's.
"""
