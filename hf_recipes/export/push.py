"""An exported form to the Hub, in one commit; everything that can be refused is refused before the first byte goes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from hf_recipes.core.errors import CheckFailed, UserError, first_line
from hf_recipes.core.log import logger
from hf_recipes.export.push_files import PushFiles, base_named_in_run, files_to_push

# https://huggingface.co/docs/hub/repositories-getting-started: letters, digits, "-", "_", ".", 96 at most.
_NAME = r"[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_REPO_ID = re.compile(rf"^{_NAME}/{_NAME}$", re.ASCII)

Check = Callable[[Path], Sequence[str]]


def push_directory(
    directory: Path | str,
    repo_id: str,
    *,
    private: bool,
    base: str | None = None,
    check: Check | None = None,
    message: str = "Upload by hf_recipes",
) -> str:
    """Upload an adapter, a merged model or another form; returns the address of the commit.

    Sent are weights, configs, tokenizer, template and card. What belongs to the run stays here (optimizer state,
    run.json, events, manifests, pickles, hidden files), and places on this machine are taken out of the configs; both
    are told.

    Args:
        repo_id: ``owner/name``; made if it is not there.
        private: for a new repository; an existing one that is public is refused where this is True.
        base: the base's Hub name, for an adapter whose config names a directory; by default the one that the run's
            recipe named.
        check: gives what is wrong with a directory, in sentences; called before anything is sent.

    Raises:
        UserError: no token, a name that is none, a file that must not go, or what the Hub answered (401, 403, no
            network).
        CheckFailed: `check` found something.
    """
    path = Path(directory)
    token = check_push([repo_id])
    files = files_to_push(path, base or base_named_in_run(path))
    problems = list(check(path)) if check else []
    if problems:
        raise CheckFailed(f"{path} does not verify, and nothing was uploaded: {problems[0]}")
    _tell(files)
    with _answers_of_the_hub(repo_id):
        return _upload(files, repo_id, private, token, message)


def check_push(repo_ids: Sequence[str]) -> str:
    """The Hub token that uploads use, once all names could be repositories': for before long work, too.

    Raises:
        UserError: a name is none, or there is no token.
    """
    for repo_id in repo_ids:
        _check_repo_id(repo_id)
    return _token()


def _check_repo_id(repo_id: str) -> None:
    if not _REPO_ID.match(repo_id) or ".." in repo_id or "--" in repo_id or repo_id.endswith(".git"):
        raise UserError(
            f"'{repo_id}' is no name on the Hub: write owner/name, of letters, digits, '-', '_' and '.', up to 96."
        )


def _token() -> str:
    from huggingface_hub import get_token

    token = get_token()
    if not token:
        raise UserError(
            "There is no Hub token here: log in with `hf auth login`, or set HF_TOKEN to one that may write."
        )
    return token


def _tell(files: PushFiles) -> None:
    if files.left_out:
        some = ", ".join(files.left_out[:5]) + (", …" if len(files.left_out) > 5 else "")
        logger.info("Not uploaded, as they belong to the run: %d files (%s).", len(files.left_out), some)
    if files.changed:
        logger.info("Taken out of the uploaded copies: %s.", ", ".join(files.changed))


def _upload(files: PushFiles, repo_id: str, private: bool, token: str, message: str) -> str:
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)
    _make_repository(api, repo_id, private)
    operations = [
        CommitOperationAdd(name, content if isinstance(content, bytes) else str(content))
        for name, content in files.content.items()
    ]
    return str(api.create_commit(repo_id, operations, commit_message=message).commit_url)


def _make_repository(api: Any, repo_id: str, private: bool) -> None:
    """Make it, or go on with one that is there; `create_repo(exist_ok=True)` would say nothing of its being public."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        api.create_repo(repo_id, private=private)
        return
    except HfHubHTTPError as error:
        if _status(error) != 409:
            raise
    if private and not api.repo_info(repo_id).private:
        raise UserError(f"{repo_id} is there and public: make it private on the Hub first, or choose another name.")
    logger.info("%s is there already: files of the same names get a new version.", repo_id)


@contextmanager
def _answers_of_the_hub(repo_id: str) -> Iterator[None]:
    """What the Hub answers, in a sentence."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    # What the library's HTTP client raises without an answer; the client itself changes between versions.
    no_answer = cast(type[Exception], HfHubHTTPError.__bases__[0])

    try:
        yield
    except OfflineModeIsEnabled:
        raise UserError("HF_HUB_OFFLINE is set, so nothing can be uploaded: unset it.") from None
    except HfHubHTTPError as error:
        raise UserError(_sentence(repo_id, _status(error), error)) from None
    except (no_answer, ConnectionError) as error:
        raise UserError(
            f"The Hub cannot be reached ({first_line(error)}): check the network, then push again."
        ) from None
    except ValueError as error:  # a card that the Hub's validation refuses, and the like
        if isinstance(error, UserError):
            raise
        raise UserError(f"The Hub refuses the upload to {repo_id}: {' '.join(str(error).split())}") from None


def _sentence(repo_id: str, status: int | None, error: Exception) -> str:
    owner = repo_id.split("/")[0]
    if status == 401:
        return "The Hub does not accept the token (401): log in again with `hf auth login`, or set a valid HF_TOKEN."
    if status == 403:
        return f"The token may not write to '{owner}' (403): give one with the right to write there, or another owner."
    if status == 404:
        return f"The Hub does not find {repo_id} (404): check the owner's name, and that the token may see it."
    return f"The Hub refuses the upload to {repo_id} ({status}): {first_line(error)}"


def _status(error: Any) -> int | None:
    response = getattr(error, "response", None)
    return getattr(response, "status_code", None)
