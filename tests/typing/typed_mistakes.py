# ruff: noqa: B018, E501
# fmt: off
"""Mistakes with typed samples that type checkers find; never run.

A comment says which error mypy and pyright report on its line.
"""

import numpy as np
from numpy.typing import NDArray

from fastshard.typed import Dataset, Lens, PackableSample, lens, load_dataset, packable


@packable
class ImageSample:
    image: NDArray[np.uint8]
    label: str
    score: float = 0.0


class Captioned(PackableSample):
    text: str
    bbox: NDArray[np.float32] | None = None


class Size(PackableSample):
    n: int


image = np.zeros(3, "u1")
ds = Dataset[ImageSample]("data.tar")

# Constructors.
ImageSample(image)  # E: call-arg, reportCallIssue
ImageSample(image, "a", 0.5, 3)  # E: call-arg, reportCallIssue
ImageSample(image, label=3)  # E: arg-type, reportArgumentType
ImageSample(image, "a", colour="red")  # E: call-arg, reportCallIssue
ImageSample([1], "a")  # E: arg-type, reportArgumentType
Captioned()  # E: call-arg, reportCallIssue
Captioned(text=None)  # E: arg-type, reportArgumentType
Captioned(text="a", bbox="b")  # E: arg-type, reportArgumentType

# Attributes.
ImageSample(image, "a").lable  # E: attr-defined, reportAttributeAccessIssue
ImageSample(image, "a").packed  # E: attr-defined, reportAttributeAccessIssue
number: int = Captioned(text="a").text  # E: assignment, reportAssignmentType
Captioned(text="a").packed = b""  # E: misc, reportAttributeAccessIssue
Captioned.from_bytes(3)  # E: arg-type, reportArgumentType

# Datasets.
ds[0].text  # E: attr-defined, reportAttributeAccessIssue
other: Dataset[Captioned] = ds  # E: assignment, reportAssignmentType
first: Captioned = ds[0]  # E: assignment, reportAssignmentType
ds.filter(lambda sample: sample.text)  # E: attr-defined, reportAttributeAccessIssue
ds.ordered(batch_size="32")  # E: call-overload, reportCallIssue reportArgumentType
for batch in ds.ordered(batch_size=32):
    batch.samples[0].text  # E: attr-defined, reportAttributeAccessIssue
ds.as_type(3)  # E: arg-type, reportArgumentType
ds.as_type(Captioned)[0].label  # E: attr-defined, reportAttributeAccessIssue
load_dataset("data/", ImageSample, split="train")[0].text  # E: attr-defined, reportAttributeAccessIssue
load_dataset("data/", ImageSample)[0]  # E: index, reportArgumentType
load_dataset("data/", ImageSample)["train"][0].text  # E: attr-defined, reportAttributeAccessIssue


# Lenses.
@lens
def caption(sample: ImageSample) -> Captioned:
    return Captioned(text=sample.label)


@lens
def measure(sample: Captioned) -> Size:
    return Size(len(sample.text))


@caption.putter  # E: arg-type, reportArgumentType
def put(view: Size, sample: ImageSample) -> ImageSample:
    return sample


caption(Captioned(text="a"))  # E: arg-type, reportArgumentType
caption.put(ImageSample(image, "a"), Captioned(text="a"))  # E: arg-type arg-type, reportArgumentType reportArgumentType
wrong: Lens[Captioned, ImageSample] = caption  # E: assignment, reportAssignmentType
measure | caption  # E: operator, reportOperatorIssue
caption @ measure  # E: operator, reportOperatorIssue
