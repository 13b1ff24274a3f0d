"""Functions that write the phantom, or a picture, into a file with one property."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import pydicom
from PIL import Image

from peer.train.data.image_files import PAGES_MAX
from tests.fakes import phantoms
from tests.fakes.phantoms import PHANTOM

GREY = np.array([[10, 20, 30], [40, 50, 200]], dtype=np.uint8)
COLOURS = np.stack([GREY, GREY // 2, 255 - GREY], axis=-1)
WORDS = GREY.astype(np.uint16) * 300


def save(array: np.ndarray, **options: object) -> Callable[[Path], object]:
    return lambda path: Image.fromarray(array).save(path, **options)


def palette(path: Path) -> None:
    image = Image.fromarray(np.array([[0, 1, 2], [2, 1, 0]], dtype=np.uint8))
    image.putpalette([255, 0, 0, 0, 250, 0, 0, 0, 245])
    image.save(path)


def transparent(alpha: int) -> Callable[[Path], object]:
    return save(np.dstack([COLOURS, np.full(GREY.shape, alpha, dtype=np.uint8)]))


def rotated(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # upright after a quarter turn clockwise
    Image.fromarray(np.ascontiguousarray(np.rot90(GREY))).save(path, exif=exif)


def pages(path: Path) -> None:
    first, *more = [Image.fromarray(PHANTOM[:, :, k].T.astype(np.uint8)) for k in range(4)]
    first.save(path, save_all=True, append_images=more)


def pyramid(path: Path) -> None:
    Image.fromarray(GREY).save(path, save_all=True, append_images=[Image.fromarray(GREY[:1])])


def chain_of_pages(path: Path) -> None:
    """4097 pages of the same pixel, without pillow, which takes long to write so many."""
    tags = ((256, 1), (257, 1), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, 1))
    size = 2 + 12 * len(tags) + 4
    page = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    ends = [*(10 + size * number for number in range(1, PAGES_MAX + 1)), 0]
    path.write_bytes(b"II*\0" + struct.pack("<IH", 10, 7) + b"".join(page + struct.pack("<I", end) for end in ends))


def tiff(values: np.ndarray, sample_format: int) -> Callable[[Path], object]:
    """One page of a type of numbers that pillow does not write."""
    rows, columns = values.shape
    data = values.astype(values.dtype.newbyteorder("<")).tobytes()
    tags = (
        (256, columns), (257, rows), (258, 8 * values.dtype.itemsize), (259, 1), (262, 1), (273, 8), (277, 1),
        (278, rows), (279, len(data)), (339, sample_format),
    )  # fmt: skip
    page = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    start = b"II*\0" + struct.pack("<I", 8 + len(data))
    return lambda path: path.write_bytes(start + data + page + bytes(4))


def flipped_bit(make: Callable[[Path], object], at: int) -> Callable[[Path], object]:
    """A file in which one bit was damaged after it was written."""

    def damage(path: Path) -> None:
        make(path)
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(content)

    return damage


def stored_in_gzip(path: Path) -> None:
    """A volume that gzip does not compress, so that a damaged byte changes values alone."""
    phantoms.nifti(path.with_name("a.nii"))
    path.write_bytes(gzip.compress(path.with_name("a.nii").read_bytes(), compresslevel=0))


def damaged_checksum(path: Path) -> None:
    """A page in one strip, of which the last byte, of its checksum, was damaged."""
    save(GREY, compression="tiff_adobe_deflate")(path)
    with Image.open(path) as image:
        end = image.tag_v2[273][0] + image.tag_v2[279][0]
    content = bytearray(path.read_bytes())
    content[end - 1] ^= 1
    path.write_bytes(content)


def in_metres(image: nibabel.Nifti1Image) -> None:
    affine = np.diag([1e-3, 1e-3, 1e-3, 1.0]) @ image.affine
    image.set_qform(affine, code=1)
    image.set_sform(affine, code=1)
    image.header.set_xyzt_units("meter")


def longer(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """A file with 60 bytes, two slices of the phantom as int16, behind those that its header counts."""

    def append(path: Path) -> None:
        make(path.with_suffix("") if path.suffix == ".gz" else path)
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(path.with_suffix("").read_bytes() + bytes(60)))
        else:
            path.write_bytes(path.read_bytes() + bytes(60))

    return append


def whole_slices(path: Path) -> None:
    phantoms.nifti(path)


def one_slice_unlike(**tags: object) -> Callable[[list[Path]], object]:
    """Slices that say what they are, of which one says something else."""
    alike = {"PatientID": "A", "FrameOfReferenceUID": "1.2.8", "Units": "BQML", "Modality": "MR"}

    def change(paths: list[Path]) -> None:
        change_slices(**alike, ImageType=["ORIGINAL", "PRIMARY", "M"])(paths)
        change_slices(1, **tags)(paths)

    return change


def renamed_slice(suffix: str) -> Callable[[list[Path]], object]:
    """The outermost slice, compressed under another name."""

    def rename(paths: list[Path]) -> None:
        path = paths[-1].rename(f"{paths[-1]}{suffix}")
        path.write_bytes(gzip.compress(path.read_bytes()))

    return rename


def floating_pixels(path: Path) -> None:
    file = phantoms.dataset(path, WORDS, FloatPixelPaddingValue=60000.0)
    file.FloatPixelData, file.BitsAllocated = WORDS.astype("<f4").tobytes(), 32
    for key in ("PixelData", "BitsStored", "HighBit", "PixelRepresentation"):
        delattr(file, key)
    file.save_as(path)


def two_frames(path: Path) -> None:
    file = phantoms.dataset(path, WORDS)
    file.PixelData *= 2
    file.save_as(path)


def two_floating_frames(path: Path) -> None:
    floating_pixels(path)
    file = pydicom.dcmread(path)
    file.FloatPixelData *= 2
    file.save_as(path)


def rescaled_file(mapped: float) -> Callable[[Path], object]:
    """Frames without slopes in a file with slope 2, and a mapping to real world values with this slope."""

    def make(path: Path) -> None:
        file = phantoms.enhanced(path)
        del file.SharedFunctionalGroupsSequence[0].PixelValueTransformationSequence
        file.RescaleSlope, file.RescaleIntercept = 2, 0
        file.RealWorldValueMappingSequence = phantoms.real_world(0, 65535, Slope=mapped, Intercept=0.0)
        file.save_as(path)

    return make


def two_frames_of_runs(path: Path) -> None:
    file = phantoms.dataset(path, WORDS)
    pydicom.pixels.compress(file, pydicom.uid.RLELossless)
    (frame,) = pydicom.encaps.generate_frames(file.PixelData, number_of_frames=1)
    file.PixelData = pydicom.encaps.encapsulate([frame, frame])
    file.save_as(path)


def page_and_mask(path: Path) -> None:
    mask = Image.fromarray(GREY)
    mask.encoderinfo = {"tiffinfo": {254: 4}}
    Image.fromarray(GREY).save(path, save_all=True, append_images=[mask])


def turned_page(turn: int) -> Callable[[Path], object]:
    """A page that is upright once it is turned as its tag says."""
    stored = {
        2: GREY[:, ::-1], 3: GREY[::-1, ::-1], 4: GREY[::-1], 5: GREY.T, 6: np.rot90(GREY), 7: GREY[::-1, ::-1].T,
        8: np.rot90(GREY, -1),
    }[turn]  # fmt: skip
    return lambda path: Image.fromarray(np.ascontiguousarray(stored)).save(path, tiffinfo={274: turn})


def header_alone(path: Path) -> None:
    header = nibabel.Nifti1Header()
    header.set_data_shape((2048, 2048, 1024))
    path.write_bytes(header.binaryblock + bytes(100))


def more_frames(path: Path) -> None:
    phantoms.classic(path)
    phantoms.change(path, NumberOfFrames=(1 << 31) - 1)


def more_compressed_frames(path: Path) -> None:
    file = phantoms.classic(path)
    file.file_meta.TransferSyntaxUID, file.NumberOfFrames = pydicom.uid.RLELossless, 9999
    file.PixelData = pydicom.encaps.encapsulate([bytes(64)])
    file.save_as(path)


def cut_short(path: Path) -> None:
    np.save(path, PHANTOM)
    path.write_bytes(path.read_bytes()[:-1])


def nifti_changed(change: Callable[[nibabel.Nifti1Image], object]) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        image = phantoms.nifti(path)
        change(image)
        nibabel.save(image, path)

    return make


def without_codes(image: nibabel.Nifti1Image) -> None:
    image.set_sform(image.affine, code=0)
    image.set_qform(image.affine, code=0)


def mirrored(image: nibabel.Nifti1Image) -> None:
    image.set_qform(np.diag([-1.0, 1, 1, 1]) @ image.affine, code=1)
    image.set_sform(image.affine, code=2)


def scaled(path: Path) -> None:
    image = phantoms.nifti(path, values=PHANTOM // 2)
    image.header.set_slope_inter(2, 0)
    nibabel.save(image, path)


def series(change: Callable[[list[Path]], object], **options: str) -> Callable[[Path], object]:
    return lambda path: change(phantoms.series(path, **options))


def change_slices(*indices: int, **tags: object) -> Callable[[list[Path]], object]:
    """Change tags of these slices, by default of all."""
    return lambda paths: [phantoms.change(paths[index], **tags) for index in indices or range(len(paths))]


def cut_last_slice(at: int) -> Callable[[list[Path]], object]:
    """Keep the first bytes of the outermost slice, without which the others lie evenly."""
    return lambda paths: paths[-1].write_bytes(paths[-1].read_bytes()[:at])


def add_report(paths: list[Path]) -> None:
    report = phantoms.dataset(paths[0].with_name("report.dcm"), GREY, SOPClassUID="1.2.840.10008.5.1.4.1.1.88.11")
    del report.Rows, report.PixelData
    report.save_as(paths[0].with_name("report.dcm"))


def copy_of_slice(paths: list[Path]) -> None:
    pydicom.dcmread(paths[1]).save_as(paths[1].with_name("copy.dcm"))


def add_notes(paths: list[Path]) -> None:
    (paths[0].parent / "notes.txt").write_text("a note")
    (paths[0].parent / ".DS_Store").write_bytes(b"\0")


def image_file(pixels: np.ndarray, **tags: object) -> Callable[[Path], object]:
    return lambda path: phantoms.dataset(path, pixels, **tags).save_as(path)


def dicom_palette(path: Path) -> None:
    tables = {
        f"{colour}PaletteColorLookupTable{part}": value
        for colour, column in zip(("Red", "Green", "Blue"), ([255, 0, 7], [0, 250, 7], [0, 0, 245]), strict=True)
        for part, value in (("Descriptor", [4, 0, 8]), ("Data", bytes([*column, 0])))
    }
    pixels = np.array([[0, 1, 2], [2, 1, 0]], dtype=np.uint8)
    image_file(pixels, PhotometricInterpretation="PALETTE COLOR", **tables)(path)
