"""How much memory a run may count on."""

from hipcli.memory import available_bytes


def test_a_container_with_less_memory_than_the_machine_counts(tmp_path):
    free = available_bytes(tmp_path)
    assert free > 1 << 20
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 600000\ninactive_file 50000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path) > 1 << 20
    (tmp_path / "memory.max").write_text("1000000\n")
    assert available_bytes(tmp_path) == 350_000
