"""The picture of a sweep's results."""

from host.labs.sweep import page as sweep_page


def test_names_in_the_picture_do_not_overlap(tmp_path, monkeypatch):
    """Labels do not overlap, even with forty formats at almost the same point, for three ring sizes."""
    row = {"workload": "digits", "gradients": "zero_value", "steps": 48, "held_out_loss": None, "accuracy": 0.9,
           "lut4": 1000}
    rows = [{**row, "nodes": nodes, "weights": f"format_{number}" if number else "raw", "words": 1000.0,
             "loss": 0.1 + number / 4000, "words_ratio": 0.5 + number / 200}
            for number in range(40) for nodes in (2, 4, 8)]
    boxes = []
    place_labels = sweep_page._place_labels

    def spy(axes, labels, renderer):
        place_labels(axes, labels, renderer)
        boxes.extend(text.get_window_extent(renderer) for text in axes.texts
                     if text.get_text().startswith("format"))

    monkeypatch.setattr(sweep_page, "_place_labels", spy)
    sweep_page.draw(rows, tmp_path / "sweep.png")
    assert len(boxes) == 39
    assert not [(n, m) for n in range(39) for m in range(n) if boxes[n].overlaps(boxes[m])]
