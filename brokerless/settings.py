"""Settings: the location of topics and how to reach it, read once from the environment. Standard library only.

Precedence: arguments, environment variables, ``.env`` in the working directory, the profile's defaults.

====================================  ==================================================================
variable                              meaning
====================================  ==================================================================
``BROKERLESS_PROFILE``                ``embedded``, ``minio`` or ``aws``; the default is the profile of the server that
                                      ``brokerless up`` started, else ``embedded``
``BROKERLESS_ROOT``                   URL of the topics: ``s3://bucket/prefix``, ``file:///path``, ``gs://``, ``az://``
``BROKERLESS_STATE_DIR``              folder for the local server's state and scratch files; default ``.brokerless``
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
    """The location of topics and how to reach it. Only this class reads the environment.

    Attributes:
        profile: selects defaults, never a code path of the pipeline.
        root: URL without a trailing slash, below which each topic has its tables.
        endpoint: URL of the S3 server, or None for AWS itself.
        region: AWS region.
        access_key, secret_key, session_token: static credentials, or None for the platform's credential chain.
        state_dir: folder for scratch files and the state of the local server.
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
            raise ConfigError("The endpoint must not contain credentials; set them with environment variables instead.")
        if self.endpoint is not None and not _is_http(self.endpoint):
            raise ConfigError(
                f"The endpoint {shown_url(self.endpoint)!r} is not a URL; write http://host:port or https://host."
            )

    @property
    def bucket(self) -> str:
        """Return the bucket of an object-store root; empty for local paths."""
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
        """Load settings from arguments, environment, ``.env`` and the profile's defaults, in this order.

        Raises:
            ConfigError: a value is not valid, or no S3 server is known for a local profile.
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
                    f"The profile aws needs a root for topics; set {ROOT_ENV}=s3://bucket/prefix or give --root."
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
                    f"The profile is {name}, but 'brokerless up' started a server of kind {kind} ({endpoint}). Use the "
                    f"profile {kind} (the default without --profile and {PROFILE_ENV}), or stop that server with "
                    f"'brokerless down' and start one of kind {name}."
                )
            if name == "embedded":
                # The embedded server listens on the loopback interface only and accepts any key.
                access, secret = access or "brokerless", secret or "brokerless"
            elif not (access and secret):
                why = "" if kind is None else f" of the server that 'brokerless up' started ({endpoint})"
                raise ConfigError(
                    f"The profile minio needs credentials{why}; set MINIO_S3_ACCESS_KEY and MINIO_S3_SECRET_ACCESS_KEY."
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
        """Return the variables that give a child process these settings. Never log them: they contain secrets."""
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
    """Return the root URL without a trailing slash.

    Raises:
        ConfigError: it is not the URL of a supported store.
    """
    # This check is the first one, because the errors below show the root. An abfss URL has its container before the
    # "@". A secret may contain slashes.
    user = re.match(r"(\w*)://([^/?#]*)@", root)
    if (user and user[1] != "abfss") or re.match(r"(?s)\w*://[^/?#]*:.*@", root):
        raise ConfigError("The root must not contain credentials; set them with environment variables instead.")
    shown = re.split("[?#]", root)[0]  # the query may be a signature
    try:
        parts = urlsplit(root)
    except ValueError:
        parts = urlsplit("")  # an invalid IPv6 address: refused below like all text that is not a URL
    no_host = parts.scheme in {"file", "memory"}
    if parts.scheme not in _SCHEMES or (not parts.netloc and not no_host):
        raise ConfigError(
            f"The root {shown!r} is not a URL of an object store; write s3://bucket/prefix, gs://bucket/prefix, "
            "az://container/prefix or file:///absolute/path."
        )
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise ConfigError(f"The root {shown!r} is not an absolute path on this machine; write file:///absolute/path.")
    # Clients interpret these differently: "%2e%2e" is a name for one client and the parent folder for another.
    if re.search(r"[?#%\\\x00-\x1f\x7f]", root) or any(part in {".", ".."} for part in parts.path.split("/")):
        raise ConfigError(
            f"The root {shown!r} must not contain '?', '#', '%', '\\', control characters, '.' or '..' parts."
        )
    return root.rstrip("/").replace("s3a://", "s3://", 1)


def shown_url(url: str) -> str:
    """Return a URL that is safe to show: without credentials before an ``@``, and without its query."""
    if "@" in url:
        return f"{(re.match(r'[a-z0-9]*://', url) or [''])[0]}..."
    return re.split("[?#]", url)[0]


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False  # a port that is not a number, or an invalid IPv6 address


def _running_server(state_dir: Path) -> tuple[str | None, str | None]:
    """Return endpoint and kind of the server that ``brokerless up`` started, or None for what is not recorded."""
    try:
        state = json.loads((state_dir / "server.json").read_text())
        return str(state["endpoint"]), state.get("kind")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, None


def _read_dotenv(path: Path | None) -> dict[str, str]:
    """Parse ``NAME=value`` lines; ``#`` comments, a leading ``export`` and quotes around a value are allowed."""
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
