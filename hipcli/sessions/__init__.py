"""Sessions: what a model has read, kept on the disk, so that nobody waits for it twice. Knows nothing of terminals."""

from hipcli.sessions.fingerprint import Fingerprint
from hipcli.sessions.folder import Session
from hipcli.sessions.keeper import SessionKeeper
from hipcli.sessions.library import Library

__all__ = ["Fingerprint", "Library", "Session", "SessionKeeper"]
