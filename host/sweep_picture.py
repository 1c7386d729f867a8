def draw(rows, path) -> None: pass
