"""Who was registered from a server's folder."""

from engram.link.server.registration import names


def test_a_broken_note_costs_a_name_and_nothing_else(tmp_path):
    clients = tmp_path / "clients"
    clients.mkdir()
    notes = {"client-0": b"123", "client-1": b"", "client-2": b"\xff\xfe", "client-3": b"9" * 5000}
    for name, note in notes.items():
        (clients / f"{name}.node").write_bytes(note)
    (clients / "client-4.node").symlink_to("nowhere")
    (clients / "client-5.node").mkdir()
    assert names(tmp_path) == {123: "client-0"}
