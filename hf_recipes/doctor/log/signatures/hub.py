"""The Hub and the way to it."""

from __future__ import annotations

from hf_recipes.doctor.log.signature import Signature

_HUB = "huggingface_hub, provoked"

SIGNATURES: dict[str, Signature] = {
    "gated": Signature(
        needle="ated repo",
        pattern=r"(Cannot access gated repo|You are trying to access a gated repo)(.*?(huggingface\.co|hf\.co)/"
        r"(?P<name>[^/\s]+/[^/\s]+))?",
        cause="The model is gated (<name>), and this token has not been let in, or there is none.",
        cure="ask for access on the model's page, then hf auth login (or HF_TOKEN) on the machine that runs",
        example="Cannot access gated repo for url "
        "https://huggingface.co/google/gemma-3-4b-pt/resolve/main/config.json.",
        seen="https://github.com/ariG23498/gemma3-object-detection/issues/5",
    ),
    "gated_error": Signature(
        needle="GatedRepoError",
        cause="The model is gated, and this token has not been let in, or there is none.",
        cure="ask for access on the model's page, then hf auth login (or HF_TOKEN) on the machine that runs",
        example="huggingface_hub.errors.GatedRepoError: 401 Client Error.",
        seen="https://github.com/ml-explore/mlx-examples/issues/759",
    ),
    "repository_absent": Signature(
        needle="RepositoryNotFoundError",
        cause="There is no such repository on the Hub, or it is private and this token may not see it (the Hub "
        "answers 401 "
        "or 404 for both).",
        cure="look at the name (OWNER/NAME); hf auth whoami; a local directory must exist: look at the path",
        example="huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error.",
        seen="huggingface_hub (errors.py)",
    ),
    "not_a_model": Signature(
        needle="is not a local folder and is not a valid model identifier",
        pattern=r"(?P<name>\S+) is not a local folder",
        cause="'<name>' is neither a directory here nor a model on the Hub that this token may see.",
        cure="look at the path from where the command is started; OWNER/NAME for the Hub; hf auth login for "
        "private ones",
        example="OSError: nobody/nothing is not a local folder and is not a valid model identifier listed on "
        "'https://huggingface.co/models'",
        seen="transformers 5.24 (utils/hub.py)",
    ),
    "bad_repository_name": Signature(
        needle="Repo id must",
        pattern=r"Repo id must .*: '(?P<name>[^']+)'",
        cause="'<name>' was meant as a path, does not exist here, and was taken for a name on the Hub.",
        cure="look at the path from where the command is started",
        kind="symptom",
        example="huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
        "'namespace/repo_name': '/models/llama'. Use `repo_type` argument if needed.",
        seen=_HUB,
    ),
    "revision_absent": Signature(
        needle="RevisionNotFoundError",
        cause="The repository has no such branch, tag or commit.",
        cure="look at model_revision (or the data set's revision)",
        example="huggingface_hub.errors.RevisionNotFoundError: 404 Client Error.",
        seen="huggingface_hub (errors.py)",
    ),
    "offline": Signature(
        needle="outgoing traffic has been disabled",
        cause="HF_HUB_OFFLINE is set, and what was asked for is not in the cache.",
        cure="download it where there is a network (hf download OWNER/NAME) into the same HF_HOME; or unset "
        "HF_HUB_OFFLINE",
        example="huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache and "
        "outgoing traffic has been disabled.",
        seen=_HUB,
    ),
    "no_connection": Signature(
        needle="We couldn't connect to",
        pattern=r"We couldn't connect to 'https://(huggingface\.co|hf-mirror\.com|[^']+)'",
        cause="The Hub cannot be reached from here, and what was asked for is not in the cache.",
        cure="look at proxies (https_proxy) and HF_ENDPOINT; or download elsewhere and give the directory",
        kind="symptom",
        example="OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find "
        "them in the "
        "cached files.",
        seen="transformers 5.24, provoked",
    ),
    "rate_limit": Signature(
        needle=("429 Client Error", "429 Too Many", "HTTP Error 429", "status code 429"),
        pattern=r"429 (Client Error|Too Many Requests)|HTTP Error 429|status code 429",
        cause="The Hub was asked too often from this address.",
        cure="hf auth login (a token has a higher limit); download once and share HF_HOME; let one rank download first",
        example="huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: …",
        seen="huggingface_hub, HTTP status 429",
    ),
    "no_token": Signature(
        needle="but no token found",
        cause="The Hub wants a token here, and there is none.",
        cure="hf auth login, or HF_TOKEN",
        example="huggingface_hub.errors.LocalTokenNotFoundError: Token is required (`token=True`), but no token "
        "found. You "
        "need to provide a token or be logged in to Hugging Face with `hf auth login`",
        seen=_HUB,
    ),
    "download_timeout": Signature(
        needle=("ead timed out", "ReadTimeout", "ConnectTimeout"),
        pattern=r"(HTTPSConnectionPool\(host='(huggingface\.co|hf\.co|cdn-lfs[^']*|cas-[^']*)'.*[Rr]ead timed out|"
        r"(ReadTimeout|ConnectTimeout)(Error)?: .*timed out.*(huggingface|hf\.co))",
        cause="A download from the Hub stood still until its time was up.",
        cure="start again: it goes on where it was; HF_HUB_DOWNLOAD_TIMEOUT=60; look at the proxy",
        example="requests.exceptions.ReadTimeout: (ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', "
        "port=443): "
        'Read timed out. (read timeout=10)"), …)',
        seen="requests and httpx, as huggingface_hub raises them",
    ),
    "wandb_login": Signature(
        needle="api_key not configured (no-tty)",
        cause="Weights & Biases wants a key, and nobody is there to type it.",
        cure="report_to: none, WANDB_MODE=offline, or WANDB_API_KEY",
        example="wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
        seen="wandb",
    ),
}
