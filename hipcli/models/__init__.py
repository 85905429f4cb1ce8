"""Model files: what a user names becomes a directory that transformers loads. Knows nothing of tensors or prompts."""

from hipcli.models.catalogue import (
    DEFAULT_MODEL,
    ModelFiles,
    list_models,
    obtain_model,
    obtain_wheel_model,
    remove_model,
    verify_model,
)

__all__ = ["DEFAULT_MODEL", "ModelFiles", "list_models", "obtain_model", "obtain_wheel_model", "remove_model", "verify_model"]
