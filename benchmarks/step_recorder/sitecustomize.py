"""Python imports this at start-up when its directory is on PYTHONPATH. It does nothing unless STEP_RECORD is set."""

import os

if os.environ.get("STEP_RECORD"):
    import step_recording

    step_recording.install(os.environ["STEP_RECORD"], pad_id=int(os.environ.get("STEP_RECORD_PAD", "-1")))
