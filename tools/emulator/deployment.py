"""Deploy to an emulator of AWS on this machine, with the CDK's command line.

It needs no account, no Docker and no network. The emulator listens on the loopback interface only, checks the policies
of roles, and writes to one directory only. The CDK uses that directory, too, for its caches, its assembly and its home.

``python -m tools.emulator.deployment`` deploys and keeps running, so that you can inspect the result, until Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import boto3
from botocore.config import Config

from brokerless.errors import BrokerlessError
from brokerless.local.processes import HOST, end_child, end_group, http_get, on_free_port, spawn, wait_ready
from brokerless.local.server import ministack_environ, prepare_ministack
from brokerless.settings import PROFILE_ENV, ROOT_ENV
from infra.config import REPOSITORY
from tools.emulator.app import STAGE
from tools.emulator.server import ACCOUNT, DIRECTORY_ENV, REGION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

# A stack takes about a minute here; a custom resource without an answer would wait for an hour.
_CDK_DEADLINE_S: Final = 600.0
_SHOWN_CHARACTERS: Final = 6000
# The emulator does not check the secret of the account's own key, but clients need one.
_SECRET: Final = "local"  # noqa: S105

_BIN: Final = Path(sys.executable).parent


class Emulator:
    """An emulator of AWS on the loopback interface; a context manager that ends every process it started.

    Attributes:
        directory: the folder for all its files.
        endpoint: URL of all services.
        access_key: the key of the account's owner, whom no policy restricts. It is different each time, because the
            CDK's command line remembers which key belongs to which account.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = prepare_ministack(directory)
        self.access_key = f"AKIA{secrets.token_hex(8).upper()}"
        self.endpoint = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = on_free_port(None, self._start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        if process is not None:
            # The emulator and its functions' workers are one process group, which ends when its input closes.
            end_child(process, grace_s=5.0)
            end_group(process, grace_s=0)
        shutil.rmtree(self.directory / "tmp", ignore_errors=True)

    @property
    def log(self) -> Path:
        """The output of the emulator."""
        return self.directory / "emulator.log"

    def environ(self) -> dict[str, str]:
        """Return the environment in which any AWS client uses this emulator, as the account's owner."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, service: str, credentials: Mapping[str, str] | None = None) -> Any:
        """Return a boto3 client with the credentials of the account's owner or of a role (``assume``).

        Args:
            service: the service's name in boto3.
            credentials: credentials as AWS's environment variables.
        """
        keys = credentials or self.environ()
        return boto3.client(
            service,  # type: ignore[call-overload]
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
            aws_session_token=keys.get("AWS_SESSION_TOKEN"),
            # A function may be slow, and a call must not be repeated.
            config=Config(connect_timeout=5, read_timeout=120, retries={"total_max_attempts": 1}),
        )

    def assume(self, role_arn: str) -> dict[str, str]:
        """Return credentials with the rights of a role, as AWS's environment variables."""
        answer = self.client("sts").assume_role(RoleArn=role_arn, RoleSessionName="local")["Credentials"]
        return {
            "AWS_ACCESS_KEY_ID": answer["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": answer["SecretAccessKey"],
            "AWS_SESSION_TOKEN": answer["SessionToken"],
        }

    def _start(self, port: int) -> subprocess.Popen[bytes]:
        self.endpoint = f"http://{HOST}:{port}"
        nonce = secrets.token_hex(16)
        process = spawn(
            [sys.executable, "-m", "tools.emulator.server"],
            environ={
                **ministack_environ(self.directory, port=port, nonce=nonce),
                **self.environ(),
                DIRECTORY_ENV: str(self.directory),
                # Functions send their answers for CloudFormation to this name.
                "MINISTACK_HOST": HOST,
                "MINISTACK_ACCOUNT_ID": ACCOUNT,
                "MINISTACK_REGION": REGION,
                "AUTH": "true",
                "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}",
                "HOME": str(self.directory / "tmp"),
                # Functions inherit it, and must find only their own package.
                "PYTHONPATH": "",
                # There is no daemon that receives traces.
                "POWERTOOLS_TRACE_DISABLED": "true",
            },
            log_file=self.log,
            cwd=REPOSITORY,
        )
        wait_ready(
            process,
            name="The AWS emulator",
            port=port,
            log_file=self.log,
            is_ready=lambda: nonce in http_get(port, "/_ministack/health"),
        )
        return process


class Deployment:
    """The CDK's command line, pinned by ``package.json``, with an emulator as its target.

    Args:
        emulator: a running emulator.
        directory: the folder for the assembly and the command line's caches.
    """

    def __init__(self, emulator: Emulator, directory: Path) -> None:
        self._emulator = emulator
        self._directory = directory
        self._assembly = directory / "cdk.out"
        (directory / "home").mkdir(parents=True, exist_ok=True)

    def bootstrap(self) -> str:
        """Prepare the account: the bucket of assets."""
        return self._cdk("bootstrap", f"aws://{ACCOUNT}/{REGION}")

    def synth(self, context: Mapping[str, str] | None = None) -> str:
        """Synthesise the templates that the other commands use, and return the output.

        Args:
            context: values of ``tools.emulator.app``'s context, for example the interval of the pipeline.
        """
        given = [word for name, value in (context or {}).items() for word in ("--context", f"{name}={value}")]
        app = f"{sys.executable} -m tools.emulator.app"
        command = ["synth", "--quiet", "--app", app, "--build", "", "--output", str(self._assembly)]
        return self._cdk(*command, *given, cwd=REPOSITORY)

    def deploy(self) -> str:
        """Deploy the last templates to all stacks."""
        return self._cdk("deploy", *self._all(), "--require-approval", "never", "--progress", "events")

    def diff(self) -> str:
        """Return the differences between the deployed stacks and the last templates."""
        return self._cdk("diff", *self._all())

    def destroy(self) -> str:
        """Remove all stacks."""
        return self._cdk("destroy", *self._all(), "--force")

    def _all(self) -> tuple[str, ...]:
        return ("--all", "--app", str(self._assembly))

    def _cdk(self, *arguments: str, cwd: Path | None = None) -> str:
        """Run one command and return its output.

        Args:
            arguments: the arguments of ``cdk``.
            cwd: the checkout, whose ``cdk.json`` names the app and how to build its assets; or a directory without
                one, so that commands that need no app do not build it.

        Raises:
            BrokerlessError: the command failed or took too long; the text has the end of its output.
        """
        inherited = {name: value for name, value in os.environ.items() if name in {"LANG", "LC_ALL", "LD_LIBRARY_PATH"}}
        environ = {
            **inherited,
            **self._emulator.environ(),
            "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self._directory / "home"),
            "CDK_HOME": str(self._directory / "home"),
            "TMPDIR": str(self._directory / "home"),
            "CDK_DISABLE_CLI_TELEMETRY": "1",
            "NO_COLOR": "1",
            "CI": "true",
        }
        command = [str(REPOSITORY / "node_modules" / ".bin" / "cdk"), *arguments]
        with subprocess.Popen(
            command,
            env=environ,
            cwd=cwd or self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        ) as process:
            try:
                output, _ = process.communicate(timeout=_CDK_DEADLINE_S)
            finally:
                # After an interruption, this ends the app and the CDK's own helpers.
                end_group(process, grace_s=0)
        if process.returncode:
            raise BrokerlessError(
                f"'cdk {arguments[0]}' failed with exit code {process.returncode}; the emulator's log is "
                f"{self._emulator.log}. Its output ends with:\n{output[-_SHOWN_CHARACTERS:]}"
            )
        return output


def main(argv: Sequence[str] | None = None) -> int:
    """Deploy to an emulator and run it until Ctrl-C; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.emulator.deployment", description="The AWS deployment on this machine."
    )
    parser.add_argument("--directory", type=Path, help="the folder for all files (default: a temporary directory)")
    args = parser.parse_args(argv)
    with contextlib.ExitStack() as stack:
        directory = args.directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="brokerless-aws-")))
        try:
            emulator = stack.enter_context(Emulator(directory / "aws"))
            deployment = Deployment(emulator, directory / "cdk")
            print(f"An emulator of AWS runs at {emulator.endpoint}; deploying takes about two minutes.", flush=True)
            deployment.bootstrap()
            deployment.synth()
            deployment.deploy()
        except BrokerlessError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        print(_tour(emulator), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    return 0


def _tour(emulator: Emulator) -> str:
    topics = emulator.client("lambda").get_function_configuration(FunctionName=f"brokerless-{STAGE}-topics")
    root = topics["Environment"]["Variables"][ROOT_ENV]
    variables = {**emulator.environ(), PROFILE_ENV: "aws", ROOT_ENV: root}
    stacks = emulator.client("cloudformation").describe_stacks()["Stacks"]
    outputs = {output["OutputKey"]: output["OutputValue"] for stack in stacks for output in stack.get("Outputs", ())}
    lines = ["Deployed. In another shell:", ""]
    lines += [f"  export {name}={value}" for name, value in variables.items()]
    lines += [
        "  brokerless tail timezone_unified",
        "",
        "Its resources (docs/local-aws.md describes emulated addresses):",
        "",
    ]
    lines += [f"  {name} = {value}" for name, value in outputs.items()]
    return "\n".join([*lines, "", f"Its log is {emulator.log}. Ctrl-C ends everything."])


if __name__ == "__main__":
    sys.exit(main())
