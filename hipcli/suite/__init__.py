"""Long-context accuracy, offline: tasks made from a seed, asked of sparse and dense attention on the same prompts."""
