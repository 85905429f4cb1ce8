"""Text to token ids and back, with the model's own tokenizer and chat template; document text never becomes control tokens."""

from hipcli.tokens.tokenizer import EncodedDocument, PromptParts, Tokenizer, load_tokenizer

__all__ = ["EncodedDocument", "PromptParts", "Tokenizer", "load_tokenizer"]
