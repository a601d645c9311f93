"""Data sets as Grain makes them: its names, attributes and modules, which are all that the checks of them read."""

MODULE = "grain._src.python.dataset.dataset"


class MapDataset:
    """Gives what the data set below gives, at each index."""

    __module__ = MODULE

    def __init__(self, *parents, length=None, **kept):
        self._parents = parents
        self._length = len(parents[0]) if length is None else length
        for name, value in kept.items():
            setattr(self, f"_{name}", value)

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        return self._parents[0][index % len(self._parents[0])]


def _of(name, **methods):
    return type(f"{name}MapDataset", (MapDataset,), {"__module__": MODULE, **methods})


Source = _of("Source", __getitem__=lambda self, index: self._source[index])
Map, Shuffle, WindowShuffle, Concatenate = _of("Map"), _of("Shuffle"), _of("WindowShuffle"), _of("Concatenate")
Mixed, Repeat, Zip, WithSeed = _of("Mixed"), _of("Repeat"), _of("Zip"), _of("_WithSeed")
Filter = _of("Filter", __getitem__=lambda self, index: self._parents[0][index] if index % 3 else None)
RandomMap, MapWithIndex, FlatMap, Range = (
    _of("RandomMap"),
    _of("MapWithIndex"),
    _of("FlatMap"),
    _of("Range", start=0, step=1),
)
Batch, Slice, Mine = _of("Batch"), _of("Slice"), type("Mine", (MapDataset,), {"__module__": "mine"})


class Stream:
    """As an IterDataset, or a DataLoader."""

    __module__ = MODULE
    _parents = ()

    def __iter__(self):
        return iter(())


def source(items):
    return Source(source=items, length=len(items))


def cut(dataset, start, stop, step=1):
    return Slice(dataset, length=len(range(start, stop, step)), start=start, stop=stop, step=step)
