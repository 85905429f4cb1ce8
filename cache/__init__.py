"""Where K and V live. Knows tensors and bytes; knows nothing of models, pruning or text.

Import this folder as `hipcli.cache`, never as `cache`.
"""
