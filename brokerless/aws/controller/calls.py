"""Call AWS services once, and turn their errors into those of ``services``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from brokerless.aws.controller.services import AnswerLost, ServiceBusy, StartRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    from brokerless.aws.controller.services import Start
    from brokerless.errors import BrokerlessError

LATER: Final = frozenset(
    {
        "ConcurrentRunsExceededException",
        "ConflictException",
        "LimitExceededException",
        "RequestLimitExceeded",
        "ResourceNotReady",
        "ResourceNotReadyException",
        "ResourceNumberLimitExceededException",
        "ServiceQuotaExceededException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
"""Error codes after which nothing was done and the same call may succeed later."""


def client_config() -> Config:
    """Return the configuration of both services' clients: one attempt of at most 13 s.

    botocore would repeat a StartJobRun whose response is late, and Glue has no token that makes it the same start.
    """
    from botocore.config import Config

    return Config(connect_timeout=3, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 1})


def start_error(start: Start, error: BotoCoreError | ClientError) -> BrokerlessError:
    """Return the error of a start: it says whether a run was started, was not, or may have been."""
    from botocore.exceptions import (
        ClientError,
        ConnectTimeoutError,
        EndpointConnectionError,
        NoCredentialsError,
        ParamValidationError,
    )

    text = f"start pipeline {start.pipeline!r} on {start.location}"
    if isinstance(error, ClientError):
        # Both services report some quotas as invalid input.
        if error_code(error) in LATER or "quota" in str(error).lower():
            return busy(text, error)
        # Glue's OperationTimeoutException has status 400, but does not say what timed out.
        if http_status(error) < 500 and error_code(error) != "OperationTimeoutException":
            return StartRefused(f"Could not {text}: {error}. Correct it and deploy again.")
    elif isinstance(error, ParamValidationError):
        return StartRefused(f"Could not {text}: {error}. Correct it and deploy again.")
    elif isinstance(error, (ConnectTimeoutError, EndpointConnectionError, NoCredentialsError)):
        return busy(text, error)  # the request was not sent
    return AnswerLost(f"Could not {text} for certain, the service did not respond: {error}. The next call finds out.")


@contextmanager
def retryable(what: str, *, no_error: tuple[str, ...]) -> Iterator[None]:
    """Raise ``ServiceBusy`` for errors of a call that may be repeated, and ignore the errors with these codes."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        if error_code(error) not in no_error:
            raise busy(what, error) from error
    except BotoCoreError as error:
        raise busy(what, error) from error


def busy(what: str, error: BotoCoreError | ClientError) -> ServiceBusy:
    """Return the error of a call that may be repeated."""
    return ServiceBusy(f"Could not {what} now: {error}. The next call tries again.")


def error_code(error: ClientError) -> str:
    """Return the service's code of an error."""
    return error.response["Error"]["Code"]


def http_status(error: ClientError) -> int:
    """Return the HTTP status of an error."""
    return error.response["ResponseMetadata"]["HTTPStatusCode"]
