"""Python imports this at its start: processes of a job that `process_kills` disturbs count their operations on files."""

import os

if "RANK" in os.environ and "KILL_LOG" in os.environ:
    from attack.process_kills import watch

    watch(int(os.environ["RANK"]))
