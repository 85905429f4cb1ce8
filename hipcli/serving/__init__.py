"""`hip serve`: documents and answers over HTTP, in the protocols that other programs speak already."""
