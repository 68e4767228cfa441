"""Every error that a user, a file or a request can cause, as one tree.

CutawayError
  ModelError                a model cannot be used
    ModelNotFoundError      no such name, file or folder
    ModelFormatError        a file lies, is cut or is malformed; names file and field
    UnsupportedModelError   a sound file holds something that Cutaway does not do
    DownloadError           a model could not be fetched, or its checksum is wrong
  RequestError              a field of a request is out of range; names field, value, range
    ContextLengthError      prompt or answer longer than the model or the cache can hold
    GrammarError            a grammar cannot be compiled, or an answer cannot go on under it
  TemplateError             a chat template refuses the messages, or is itself at fault
  ConfigError               a setting is unknown or out of range
  NumericsError             the model produced NaN or infinity for one request
  DeadlineError             an answer took longer than it was given
  ReplayError               an answer cannot be run again
  TraceFileError            a trace file lies, is cut or is malformed
  EngineClosedError         the engine ended before the answer did
  OverloadedError           too much waits already; says when another try may succeed

Faults of our own are assertions, never one of these.
Form of a message: what is wrong, the value found, what is allowed, what to do.
"""

from __future__ import annotations


class CutawayError(Exception):
    """Base of all errors that are not our own fault."""

    exit_code = 1


class ModelError(CutawayError):
    """A model cannot be used."""

    exit_code = 3


class ModelNotFoundError(ModelError):
    """No model of that name, file or folder."""


class ModelFormatError(ModelError):
    """A model file is malformed.

    file:  the file's name as the user gave it.
    field: the header field or tensor at fault.
    """

    def __init__(self, message: str, *, file: str, field: str) -> None:
        super().__init__(f"{file}: {field}: {message}")
        self.file = file
        self.field = field


class UnsupportedModelError(ModelError):
    """A sound file holds something that Cutaway does not do."""


class DownloadError(ModelError):
    """A model could not be fetched, or what came is not what was promised."""

    exit_code = 4


class RequestError(CutawayError):
    """A field of a request is out of range.

    param: the field's name, as the caller wrote it.
    """

    exit_code = 2
    code = "invalid_value"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(RequestError):
    """The prompt, or the prompt and the answer asked for, cannot fit."""

    code = "context_length_exceeded"


class GrammarError(RequestError):
    """A grammar cannot be compiled, or an answer cannot go on under it; the others go on."""

    code = "invalid_grammar"

    def __init__(self, message: str, *, param: str | None = "grammar") -> None:
        super().__init__(message, param=param)


class TemplateError(CutawayError):
    """The chat template refuses these messages, or is itself at fault."""

    exit_code = 2


class ConfigError(CutawayError):
    """A setting is unknown or out of range."""

    exit_code = 2


class NumericsError(CutawayError):
    """The model produced NaN or infinity for one request; the others go on."""

    exit_code = 5


class DeadlineError(CutawayError):
    """An answer took longer than it was given."""

    code = "deadline_exceeded"


class ReplayError(CutawayError):
    """An answer cannot be run again, for what was recorded of it is not there any more."""


class TraceFileError(CutawayError):
    """A trace file cannot be used, or holds no such thing.

    file: its name as the user gave it.
    """

    exit_code = 2

    def __init__(self, message: str, *, file: str) -> None:
        super().__init__(f"{file}: {message}")
        self.file = file


class EngineClosedError(CutawayError):
    """The engine ended before the answer did."""


class MovedError(CutawayError):
    """An answer is to go on in another engine; nobody outside hears of it."""


class OverloadedError(CutawayError):
    """Too much waits already.

    retry_after: seconds after which another try may succeed.
    """

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after
