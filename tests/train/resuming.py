"""A check that tests of every kind of training share."""

from safetensors.torch import load_file

from starbucks_retrieval.models.projections import FILE


def assert_resumes_to_the_same_bits(run, flags):
    """A run of three steps that is taken up again after the second ends as it did."""
    flags = f"{flags} --max_steps 3 --save_steps 2"
    folder = run("resumed", flags)
    whole = {file: load_file(folder / file) for file in (FILE, "model.safetensors")}
    for file in (*whole, "checkpoint-3/trainer_state.json"):
        (folder / file).unlink()
    run("resumed", f"{flags} --resume_from_checkpoint true")
    for file, weights in whole.items():
        resumed = load_file(folder / file)
        assert weights.keys() == resumed.keys() and all(weights[name].equal(resumed[name]) for name in weights)
