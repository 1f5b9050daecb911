"""The process itself: who ended it, what it could not find, what it was told."""

from __future__ import annotations

from hf_recipes.doctor.log.signature import Signature

SIGNATURES: dict[str, Signature] = {
    "slurm_time": Signature(
        needle="DUE TO TIME LIMIT",
        cause="Slurm ended the job at its time limit.",
        cure="a longer --time, or resume: hf-recipes launch slurm writes jobs that save before the limit and go on",
        example="slurmstepd: error: *** JOB 1234 ON node01 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
        seen="https://github.com/ZettaAI/zetta_utils/issues/671",
    ),
    "slurm_preempted": Signature(
        needle="DUE TO ",
        pattern=r"CANCELLED AT \S+ DUE TO (PREEMPTION|NODE FAILURE|JOB REQUEUE)",
        cause="Slurm took the machine away (preemption, or a node that failed).",
        cure="resume_from_checkpoint: last; hf-recipes launch slurm writes jobs that save when warned and requeue",
        example="slurmstepd: error: *** JOB 1234 ON node01 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***",
        seen="Slurm (src/slurmd/slurmstepd)",
    ),
    "terminated": Signature(
        needle="got signal: 15",
        cause="The launcher was asked to end (SIGTERM): a scheduler, a spot machine that is taken back, or a person.",
        cure="resume_from_checkpoint: last; hf-recipes sft saves when it is asked to end",
        kind="symptom",
        example="torch.distributed.elastic.multiprocessing.api.SignalException: Process 4839 got signal: 15",
        seen="torch 2.13, provoked",
    ),
    "interrupted": Signature(
        needle="KeyboardInterrupt",
        pattern=r"^(?:\S+ )?KeyboardInterrupt\s*$|got signal: 2\b",
        cause="Somebody pressed Ctrl-C, or a terminal was closed.",
        cure="resume_from_checkpoint: last; run in tmux, or with nohup, to outlive the terminal",
        kind="symptom",
        example="KeyboardInterrupt",
        seen="Python 3.11, provoked",
    ),
    "hang_up": Signature(
        needle="got signal: 1",
        pattern=r"got signal: 1$",
        cause="The terminal that the run was started from was closed (SIGHUP).",
        cure="run in tmux, or with nohup; resume_from_checkpoint: last",
        example="torch.distributed.elastic.multiprocessing.api.SignalException: Process 17871 got signal: 1",
        seen="https://github.com/modelscope/ms-swift/issues/5884",
    ),
    "segmentation_fault": Signature(
        needle=("Fatal Python error: Segmentation fault", "SIGSEGV", "exitcode"),
        pattern=r"Fatal Python error: Segmentation fault|Signal 11 \(SIGSEGV\) received|exitcode:? *:? -11\b",
        cause="A native library crashed: packages built for other versions of torch or CUDA, as a rule.",
        cure="python -X faulthandler names the module; reinstall it for the installed torch; hf-recipes doctor",
        example="Fatal Python error: Segmentation fault",
        seen="Python 3.11, provoked",
    ),
    "module_missing": Signature(
        needle="ModuleNotFoundError",
        pattern=r"No module named '(?P<name>[\w.]+)'",
        cause="The Python that runs has no module <name>: it is not installed, or another environment is active.",
        cure="which python; python -m pip install <name> (its package may have another name)",
        example="ModuleNotFoundError: No module named 'flash_attn'",
        seen="Python 3.11, provoked",
    ),
    "permission": Signature(
        needle="PermissionError",
        pattern=r"\[Errno 13\] Permission denied: '?(?P<path>[^']+)'?",
        cause="This user may not write or read <path>.",
        cure="another output_dir, HF_HOME or TMPDIR; ls -ld shows whose it is (a container often runs as another user)",
        example="PermissionError: [Errno 13] Permission denied: '/data/checkpoint-10'",
        seen="Python 3.11, provoked",
    ),
    "hf_recipes_says": Signature(
        needle="hf-recipes: ",
        pattern=r"^hf-recipes: (?!interrupted)\S",
        cause="hf-recipes ended with a sentence of its own, which says what is wrong and what to do.",
        cure="what the sentence says",
        kind="symptom",
        example="hf-recipes: Recipe 'nowhere.yaml' is neither a file nor a shipped recipe: `hf-recipes ls` lists them.",
        seen="hf_recipes (cli/main.py)",
    ),
    "accelerate_defaults": Signature(
        needle="The following values were not passed to `accelerate launch`",
        cause="accelerate has no configuration here and took its defaults: one machine, no mixed precision, and "
        "as many "
        "processes as it saw GPUs.",
        cure="give --num_processes and --mixed_precision, or accelerate config; hf-recipes sft decides them by itself",
        kind="notice",
        example="The following values were not passed to `accelerate launch` and had defaults used instead:",
        seen="accelerate 1.15, provoked",
    ),
    "omp_threads": Signature(
        needle="Setting OMP_NUM_THREADS environment variable for each process to be 1",
        cause="The launcher gave each rank one CPU thread: training on a CPU, and tokenising, will crawl.",
        cure="OMP_NUM_THREADS = cores / ranks before the launcher; hf-recipes sft sets it by itself",
        kind="notice",
        example="Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your "
        "system "
        "being overloaded",
        seen="torch 2.13, provoked",
    ),
    "tokenizers_fork": Signature(
        needle="The current process just got forked, after parallelism has already been used",
        cause="A tokenizer was used before data-loading workers were forked; it now uses one thread.",
        cure="TOKENIZERS_PARALLELISM=false silences it; nothing is wrong",
        kind="notice",
        example="huggingface/tokenizers: The current process just got forked, after parallelism has already been used. "
        "Disabling parallelism to avoid deadlocks...",
        seen="tokenizers",
    ),
}
