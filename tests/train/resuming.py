"""A check that tests of every kind of training share."""

from safetensors.torch import load_file

from starbucks_retrieval.models.projections import FILE


def assert_resumes_to_the_same_bits(run, flags):
    """A run of three steps that is cut after the second ends as one that is not."""
    flags = f"{flags} --max_steps 3 --save_steps 2"
    whole, cut = run("whole", flags), run("cut", flags)
    (cut / "checkpoint-3" / "trainer_state.json").unlink()
    run("cut", f"{flags} --resume_from_checkpoint true")
    for file in (FILE, "model.safetensors"):
        first, second = load_file(whole / file), load_file(cut / file)
        assert all(first[name].equal(second[name]) for name in first)
