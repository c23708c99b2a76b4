"""What and where: one value that every role takes, read once from the environment. Standard library only.

Precedence: arguments, then environment variables, then ``.env`` in the working directory, then the profile's defaults.

====================================  ==================================================================
variable                              meaning
====================================  ==================================================================
``BROKERLESS_PROFILE``                ``embedded``, ``minio`` or ``aws``; default is what ``brokerless up`` left
                                      running, else ``embedded``
``BROKERLESS_ROOT``                   where topics live: ``s3://bucket/prefix``, ``file:///path``, ``gs://``, ``az://``
``BROKERLESS_STATE_DIR``              state of the local server, scratch space; default ``.brokerless``
``AWS_ENDPOINT_URL_S3``               endpoint of the S3 server (also ``AWS_ENDPOINT_URL``)
``AWS_REGION``                        region (also ``AWS_DEFAULT_REGION``); default ``us-east-1``
``AWS_ACCESS_KEY_ID`` and so on       credentials; without them the AWS credential chain is used (profile ``aws``)
``MINIO_S3_ACCESS_KEY``               credentials of the profile ``minio``, with ``MINIO_S3_SECRET_ACCESS_KEY``
====================================  ==================================================================
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args
from urllib.parse import urlsplit

from brokerless.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

Profile = Literal["embedded", "minio", "aws"]

PROFILE_ENV: Final = "BROKERLESS_PROFILE"
ROOT_ENV: Final = "BROKERLESS_ROOT"
STATE_DIR_ENV: Final = "BROKERLESS_STATE_DIR"

_SCHEMES: Final = ("s3", "s3a", "file", "gs", "az", "abfss", "memory")
_LOCAL_ROOT: Final = "s3://brokerless"


@dataclass(frozen=True, slots=True)
class Settings:
    """Where topics are and how to reach them. Pass it on; nothing else reads the environment.

    Attributes:
        profile: which surroundings; chooses defaults, never a code path of the pipeline.
        root: URL without a trailing slash, below which each topic has its tables.
        endpoint: URL of the S3 server, or None for AWS itself.
        region: AWS region.
        access_key, secret_key, session_token: static credentials, or None for the platform's chain.
        state_dir: scratch space and the state of the local server.
    """

    profile: Profile
    root: str
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    state_dir: Path = Path(".brokerless")

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", check_root(self.root))
        if self.endpoint is not None and "@" in self.endpoint:
            raise ConfigError("The endpoint holds credentials; give them by environment variables instead.")
        if self.endpoint is not None and not _is_http(self.endpoint):
            raise ConfigError(
                f"The endpoint {shown_url(self.endpoint)!r} is not a URL; write http://host:port or https://host."
            )

    @property
    def bucket(self) -> str:
        """The bucket of an object-store root; empty for local paths."""
        return urlsplit(self.root).netloc

    @classmethod
    def load(
        cls,
        *,
        profile: str | None = None,
        root: str | None = None,
        environ: Mapping[str, str] | None = None,
        dotenv: Path | None = Path(".env"),
    ) -> Settings:
        """Settings from arguments, environment, ``.env`` and the profile's defaults, in this order.

        Raises:
            ConfigError: a value that cannot work, or the embedded profile without a running server.
        """
        env = {**_read_dotenv(dotenv), **(os.environ if environ is None else environ)}
        state_dir = Path(env.get(STATE_DIR_ENV) or ".brokerless")
        root = root or env.get(ROOT_ENV)
        is_s3 = root is None or urlsplit(check_root(root)).scheme == "s3"
        endpoint = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or None
        running, kind = (None, None) if endpoint or not is_s3 else _running_server(state_dir)
        name = profile or env.get(PROFILE_ENV) or kind or "embedded"
        if name not in get_args(Profile):
            raise ConfigError(f"Unknown profile {name!r}; use one of {', '.join(get_args(Profile))}.")
        access, secret = env.get("AWS_ACCESS_KEY_ID"), env.get("AWS_SECRET_ACCESS_KEY")
        if name == "minio":
            access = env.get("MINIO_S3_ACCESS_KEY") or access
            secret = env.get("MINIO_S3_SECRET_ACCESS_KEY") or secret
        if name == "aws":
            if root is None:
                raise ConfigError(
                    f"The profile aws needs a place for topics; set {ROOT_ENV}=s3://bucket/prefix or give --root."
                )
        elif is_s3:
            endpoint = endpoint or running
            if endpoint is None:
                start = "brokerless up --minio" if name == "minio" else "brokerless up"
                raise ConfigError(
                    f"No S3 server is known. Start one with '{start}', or set AWS_ENDPOINT_URL to the one to use."
                )
            if kind is not None and kind != name:
                raise ConfigError(
                    f"The profile is {name}, and 'brokerless up' started a server of kind {kind} ({endpoint}). Use the "
                    f"profile {kind} (without --profile and {PROFILE_ENV} it is chosen by itself), or stop that server "
                    "with 'brokerless down' and start the other."
                )
            if name == "embedded":
                # The embedded server listens on loopback only and takes any key.
                access, secret = access or "brokerless", secret or "brokerless"
            elif not (access and secret):
                why = "" if kind is None else f" of the server that 'brokerless up' started ({endpoint})"
                raise ConfigError(
                    f"The profile minio needs the credentials{why}; set MINIO_S3_ACCESS_KEY and "
                    "MINIO_S3_SECRET_ACCESS_KEY."
                )
        return cls(
            profile=name,  # type: ignore[arg-type]  # checked against the Literal's values above
            root=root or _LOCAL_ROOT,
            endpoint=endpoint if is_s3 else None,
            region=env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1",
            access_key=access,
            secret_key=secret,
            session_token=env.get("AWS_SESSION_TOKEN") if access else None,
            state_dir=state_dir,
        )

    def to_environ(self) -> dict[str, str]:
        """The variables from which a child process loads these very settings. Holds secrets: never log it."""
        values = {
            PROFILE_ENV: self.profile,
            ROOT_ENV: self.root,
            STATE_DIR_ENV: str(self.state_dir),
            "AWS_REGION": self.region,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_SESSION_TOKEN": self.session_token,
        }
        if self.profile == "minio":
            values |= {"MINIO_S3_ACCESS_KEY": self.access_key, "MINIO_S3_SECRET_ACCESS_KEY": self.secret_key}
        return {key: value for key, value in values.items() if value is not None}


def check_root(root: str) -> str:
    """The root URL without a trailing slash.

    Raises:
        ConfigError: not a URL of a store that is supported.
    """
    # First, because the messages below show the root. An abfss URL has its container before the "@".
    # A secret may hold slashes.
    user = re.match(r"(\w*)://([^/?#]*)@", root)
    if (user and user[1] != "abfss") or re.match(r"(?s)\w*://[^/?#]*:.*@", root):
        raise ConfigError("The root holds credentials; give them by environment variables instead.")
    shown = re.split("[?#]", root)[0]  # what follows may be a signature
    try:
        parts = urlsplit(root)
    except ValueError:
        parts = urlsplit("")  # a broken IPv6 address; refused like any other text that is no URL
    no_host = parts.scheme in {"file", "memory"}
    if parts.scheme not in _SCHEMES or (not parts.netloc and not no_host):
        raise ConfigError(
            f"The root {shown!r} is not a URL of an object store; write s3://bucket/prefix, gs://bucket/prefix, "
            "az://container/prefix or file:///absolute/path."
        )
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise ConfigError(f"The root {shown!r} is no absolute path of this machine; write file:///absolute/path.")
    # Clients differ in how they read these: one takes "%2e%2e" for a name, the next for the folder above.
    if re.search(r"[?#%\\\x00-\x1f\x7f]", root) or any(part in {".", ".."} for part in parts.path.split("/")):
        raise ConfigError(
            f"The root {shown!r} may not hold '?', '#', '%', '\\', control characters, '.' or '..' parts."
        )
    return root.rstrip("/").replace("s3a://", "s3://", 1)


def shown_url(url: str) -> str:
    """A URL as messages may show it: without what may be credentials, before an ``@`` or in a query."""
    if "@" in url:
        return f"{(re.match(r'[a-z0-9]*://', url) or [''])[0]}..."
    return re.split("[?#]", url)[0]


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False  # a port that is no number, a broken IPv6 address


def _running_server(state_dir: Path) -> tuple[str | None, str | None]:
    """Endpoint and kind of the server that ``brokerless up`` left running, as far as its state file names them."""
    try:
        state = json.loads((state_dir / "server.json").read_text())
        return str(state["endpoint"]), state.get("kind")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, None


def _read_dotenv(path: Path | None) -> dict[str, str]:
    """``NAME=value`` lines; ``#`` comments, an ``export`` in front and quotes around a value are allowed."""
    if path is None or not path.is_file():
        return {}
    values: dict[str, str] = {}
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); write NAME=value lines in UTF-8, or remove it.") from None
    for number, line in enumerate(content.splitlines(), start=1):
        text = line.strip().removeprefix("export ").strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise ConfigError(f"{path}, line {number}: expected NAME=value.")
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        values[name.strip()] = value
    return values
