"""A phantom with marked corners in every format and with every property; the table of deploy/data.md."""

import gzip
import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.pixels.decoders import JPEGExtended12BitDecoder, JPEGLSLosslessDecoder

from peer.errors import ConfigError
from peer.train.data.copies import copy_problems
from peer.train.data.datalist import Datalist, Sample
from peer.train.data.image_files import PAGES_MAX, SURPLUS_BYTES_MAX, open_image, read_values
from peer.train.images import load_placed
from tests.fakes import phantoms
from tests.fakes.phantoms import PHANTOM, SPACING, real_world

PAGE = Path(__file__).parents[4] / "deploy/data.md"
GREY = np.array([[10, 20, 30], [40, 50, 200]], dtype=np.uint8)
COLOURS = np.stack([GREY, GREY // 2, 255 - GREY], axis=-1)
WORDS = GREY.astype(np.uint16) * 300


@dataclass(frozen=True)
class Case:
    """A file, and the values that it gives, or the reason why it gives none.

    Attributes:
        result: for the table; of a refused file its reason is a regular expression.
        values: the right answer; ``(c, ...)`` of a picture, the phantom by default.
    """

    file: str
    property: str
    result: str
    make: Callable[[Path], object]
    name: str
    values: np.ndarray | None = None
    refused: str = ""


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


AS_PAINTED = "read as painted"
TURNED = "turned to the orientation that is asked for"
PALETTE_COLOURS = np.array([[[255, 0, 0], [0, 0, 245]], [[0, 250, 0], [250, 0, 250]]])
CASES = (
    *(
        Case("NIfTI", f"axes {codes}", TURNED, lambda path, codes=codes: phantoms.nifti(path, codes), f"{codes}.nii.gz")
        for codes in ("RAS", "LAS", "LPS", "PIR", "SAL")
    ),
    Case("NIfTI", "slope and intercept", "applied", scaled, "a.nii"),
    Case("NIfTI", "in metres or micrometres", "applied", nifti_changed(in_metres), "a.nii"),
    Case("NIfTI, compressed", "a damaged byte", "refused", flipped_bit(stored_in_gzip, at=380), "a.nii.gz",
         refused="CRC check failed"),
    Case(
        "NIfTI", "sform and qform mirror each other", "refused where volumes are turned, else noted",
        nifti_changed(mirrored), "a.nii", refused="by its sform the axes are RAS, by its qform LAS",
    ),
    Case(
        "NIfTI", "affine of zeros", "refused where volumes are turned, else noted",
        nifti_changed(lambda image: image.set_sform(np.zeros((4, 4)), code=2)), "a.nii",
        refused="an affine of volume zero",
    ),
    Case(
        "NIfTI", "sform_code and qform_code 0", "refused where volumes are turned, else noted",
        nifti_changed(without_codes), "a.nii", refused="says no orientation",
    ),
    *(
        Case("DICOM series", f"axes {codes}", TURNED, lambda path, codes=codes: phantoms.series(path, codes), codes)
        for codes in ("LPS", "LIP", "PIR")
    ),
    Case("DICOM series", "InstanceNumber against the positions", AS_PAINTED, series(len, numbers="downwards"), "a"),
    Case("DICOM series", "InstanceNumber in disorder", "ordered by position", series(len, numbers="mixed"), "a"),
    Case("DICOM series", "notes.txt and hidden files beside the slices", "left out", series(add_notes), "a"),
    Case("DICOM series", "a report beside the slices", "left out", series(add_report), "a"),
    Case("DICOM series", "slope and intercept", "applied",
         series(change_slices(RescaleSlope=2, RescaleIntercept=-1024)), "a", values=PHANTOM * 2 - 1024),
    Case("DICOM series", "a slope in some slices alone", "refused",
         series(change_slices(0, 1, 2, RescaleSlope=2, RescaleIntercept=0)), "a",
         refused="c.dcm has no RescaleSlope, other slices have one"),
    Case("DICOM series", "dose scaling", "applied", series(change_slices(DoseGridScaling=0.5)), "a",
         values=PHANTOM * 0.5),
    *(Case("DICOM series", "real world values by slope and intercept, instead of no or the same rescaling", "applied",
           series(change_slices(RealWorldValueMappingSequence=real_world(0, 65535, Slope=0.5, Intercept=-3.0), **tags)),
           "a", values=PHANTOM * 0.5 - 3)
      for tags in ({}, {"RescaleSlope": 1, "RescaleIntercept": 0}, {"RescaleSlope": 0.5, "RescaleIntercept": -3})),
    Case("DICOM series", "real world values by the same rescaling, written with fewer digits", "applied",
         series(change_slices(RescaleSlope="0.488400", RescaleIntercept="0", RealWorldValueMappingSequence=real_world(
             0, 65535, Slope=0.48840048840048844, Intercept=1e-12))), "a", values=PHANTOM * 0.4884),
    Case("DICOM series", "real world values and a rescaling that differs in the fifth digit", "refused",
         series(change_slices(RescaleSlope="0.488400", RescaleIntercept="0", RealWorldValueMappingSequence=real_world(
             0, 65535, Slope=0.48841012, Intercept=1e-5))), "a",
         refused=r"RescaleSlope 0.4884 .* real world value mapping, slope 0.48841012, intercept 1e-05 in mm2/s"),
    Case("DICOM series", "real world values by a table", "applied",
         series(change_slices(RealWorldValueMappingSequence=real_world(
             0, 255, LUTData=[value / 8 for value in range(256)]))), "a", values=PHANTOM / 8),
    Case("DICOM series", "real world values and another rescaling", "refused",
         series(change_slices(RescaleSlope=2, RescaleIntercept=0,
                              RealWorldValueMappingSequence=real_world(0, 65535, Slope=0.5, Intercept=0.0))), "a",
         refused=r"RescaleSlope 2 .* another real world value mapping, slope 0.5, intercept 0 in mm2/s; keep the one"),
    Case("DICOM series", "two real world values", "refused",
         series(change_slices(RealWorldValueMappingSequence=[
             *real_world(0, 65535, Slope=0.5), *real_world(0, 65535, "1", Slope=2.0)])), "a",
         refused=r"has 2 real world value mappings: slope 0.5, intercept 0 in mm2/s, slope 2, intercept 0 in 1; keep"),
    Case("DICOM series", "real world values of some values alone", "refused",
         series(change_slices(RealWorldValueMappingSequence=real_world(0, 3, Slope=0.5))), "a",
         refused="its real world value mapping, of 0 to 3, does not define; correct the mapping"),
    Case("DICOM series", "real world values of other units in a slice", "refused",
         series(lambda paths: [change_slices(index, RealWorldValueMappingSequence=real_world(
             0, 65535, "1" if index else "mm2/s", Slope=0.5))(paths) for index in range(len(paths))]), "a",
         refused="map their values to real world values of different kinds"),
    Case("DICOM with frames, enhanced", "real world values of the frames", "applied",
         lambda path: (phantoms.enhanced(path), phantoms.change(
             path, RealWorldValueMappingSequence=real_world(0, 65535, Slope=0.25))), "a.dcm", values=PHANTOM / 4),
    Case("DICOM, one image", "logarithms or display values of a beam, without their modality LUT", "refused",
         image_file(WORDS, Modality="XA", PixelIntensityRelationship="LOG"), "a.dcm",
         refused=r"stores no intensities \(PixelIntensityRelationship LOG\) and has no modality LUT"),
    Case("DICOM, one image", "logarithms of a processed X-ray image", AS_PAINTED,
         image_file(WORDS, Modality="DX", PixelIntensityRelationship="LOG"), "a.dcm", WORDS[None]),
    Case("DICOM, one image", "padding", "gets the lowest measured value",
         image_file(WORDS, PixelPaddingValue=60000), "a.dcm", np.where(WORDS == 60000, 3000, WORDS)[None]),
    Case("DICOM, one image", "stored bits that are not the lowest", "refused",
         image_file(GREY.astype(np.uint16) << 4, BitsStored=12, HighBit=15), "a.dcm",
         refused="stores its 12 bits up to bit 15, not 11"),
    Case("DICOM series", "slices missing", "refused", series(lambda paths: paths[1].unlink()), "a",
         refused=r"a slice is missing between e.dcm and b.dcm: 8 mm apart, others 4 mm"),
    Case("DICOM series", "two series in one folder", "refused",
         series(change_slices(0, SeriesInstanceUID="1.2.4", SeriesNumber=7, SeriesDescription="scout")), "a",
         refused=r"holds 2 series: number \? \(3 files\), number 7 scout \(1 files\)"),
    Case("DICOM series", "two slices at one place", "refused", series(copy_of_slice), "a",
         refused="d.dcm lie at one place|copy.dcm lie at one place"),
    Case("DICOM series", "a slice of another direction", "refused",
         series(change_slices(1, ImageOrientationPatient=[0, 1, 0, 0, 0, -1])), "a", refused="differ in the axes"),
    Case("DICOM series", "a damaged slice", "refused",
         series(lambda paths: paths[1].write_bytes(b"damaged")), "a", refused="^d.dcm: "),
    *(Case("DICOM series", "the last slice cut short before its pixels", "refused", series(cut_last_slice(at)), "a",
           refused="^c.dcm lacks its pixels") for at in (140, 300)),
    Case("DICOM series", "no positions", "refused where volumes are turned, else ordered by InstanceNumber",
         series(change_slices(ImagePositionPatient=None)), "a",
         refused="says no position and orientation of its slices"),
    *(
        Case("DICOM with frames, classic", f"axes {codes}", TURNED,
             lambda path, codes=codes: phantoms.classic(path, codes), f"{codes}.dcm")
        for codes in ("LPS", "LIP", "PIR")
    ),
    Case("DICOM with frames, classic", "no distance of the frames", "refused where volumes are turned, else as stored",
         lambda path: (phantoms.classic(path), phantoms.change(path, SpacingBetweenSlices=None)), "a.dcm",
         refused="says no position and orientation of its slices"),
    *(
        Case("DICOM with frames, enhanced", f"axes {codes}", TURNED,
             lambda path, codes=codes: phantoms.enhanced(path, codes), f"{codes}.dcm")
        for codes in ("LPS", "LIP", "PIR")
    ),
    Case("DICOM with frames, enhanced", "frames in disorder", "ordered by position",
         lambda path: phantoms.enhanced(path, shuffled=True), "a.dcm"),
    Case("DICOM with frames, enhanced", "slope of the frames", "applied",
         lambda path: phantoms.enhanced(path, slope=0.5), "a.dcm"),
    Case("DICOM, one image", "MONOCHROME2", AS_PAINTED, image_file(WORDS), "a.dcm", WORDS[None]),
    Case("DICOM, one image", "MONOCHROME1", "inverted", image_file(GREY, PhotometricInterpretation="MONOCHROME1"),
         "a.dcm", 255 - GREY[None]),
    Case("DICOM, one image", "RGB", AS_PAINTED,
         image_file(COLOURS, PhotometricInterpretation="RGB", SamplesPerPixel=3), "a.dcm", np.moveaxis(COLOURS, -1, 0)),
    Case("DICOM, one image", "PALETTE COLOR", "its colours", dicom_palette, "a.dcm",
         np.array([[[255, 0, 7], [7, 0, 255]], [[0, 250, 7], [7, 250, 0]], [[0, 0, 245], [245, 0, 0]]])),
    *(Case(name[1:].upper(), "grey, 8 bits", AS_PAINTED, save(GREY), f"a{name}", GREY[None])
      for name in (".png", ".bmp", ".tif")),
    *(Case(name[1:].upper(), "colours, 8 bits", AS_PAINTED, save(COLOURS), f"a{name}", np.moveaxis(COLOURS, -1, 0))
      for name in (".png", ".bmp", ".tif")),
    *(Case(name[1:].upper(), "grey, 16 bits", AS_PAINTED, save(WORDS), f"a{name}", WORDS[None])
      for name in (".png", ".tif")),
    Case("TIF", "grey, 32-bit numbers", AS_PAINTED, save(GREY.astype(np.float32) / 7), "a.tif",
         GREY[None].astype(np.float32) / 7),
    Case("TIF", "white is 0, 16 bits", "inverted", save(WORDS, tiffinfo={262: 0}), "a.tif", 65535 - WORDS[None]),
    Case("TIF", "white is 0, 32-bit numbers", "refused", save(GREY.astype(np.float32), tiffinfo={262: 0}), "a.tif",
         refused="says that white is 0, of values whose black it does not say"),
    Case("TIF", "numbers of 8 bits with a sign, of 32 bits without", AS_PAINTED,
         tiff(GREY.astype(np.int8) - 100, 2), "a.tif", GREY[None].astype(np.int8) - 100),
    Case("TIF", "numbers of 8 bits with a sign, of 32 bits without", AS_PAINTED,
         tiff(GREY.astype(np.uint32) << 24, 1), "a.tif", GREY[None].astype(np.uint32) << 24),
    Case("TIF", "numbers of 64 bits", "refused", tiff(GREY.astype(np.float64), 3), "a.tif",
         refused="holds values of the type float64, which pillow does not read"),
    Case("TIF", "pages that are channels or moments", "refused",
         save(GREY, description="ImageJ=1.53t\nimages=2\nchannels=2\n"), "a.tif",
         refused=r"its pages are not slices alone \(channels = 2\)"),
    Case("TIF", "grey, 8 bits", AS_PAINTED,  # the bits of each byte in reverse order
         save(GREY, compression="tiff_adobe_deflate", tiffinfo={266: 2}), "a.tif", GREY[None]),
    Case("TIF, compressed by deflate", "a damaged byte", "refused", damaged_checksum, "a.tif",
         refused="is damaged: .*incorrect data check"),
    Case("TIF", "cut short", "refused",
         lambda path: path.write_bytes(b"II*\0" + struct.pack("<IHHHIII", 8, 1, 259, 4, 1, 1, 0)), "a.tif",
         refused="is cut short or damaged"),
    Case("TIF", "several pages", "a volume, as stored", pages, "a.tif"),
    Case("TIF", "pages of several sizes", "refused", pyramid, "a.tif", refused="holds 2 pages that differ"),
    *(Case(name[1:].upper(), "palette", "its colours; of a label map the numbers", palette, f"a{name}",
           np.array([[[255, 0, 0], [0, 0, 255]], [[0, 250, 0], [0, 250, 0]], [[0, 0, 245], [245, 0, 0]]]))
      for name in (".png", ".bmp", ".tif")),
    Case("NIfTI", "more than 2^31 values", "refused", header_alone, "a.nii", refused="2048x2048x1024 values, at most"),
    Case("DICOM with frames, classic", "more frames than fit into the file", "refused", more_frames, "a.dcm",
         refused="says that it has 2147483647 frames, which do not fit into its"),
    Case("DICOM with frames, classic", "more frames than fit into the file", "refused", more_compressed_frames, "a.dcm",
         refused="says that it has 9999 frames, which do not fit into its"),
    Case("TIF", "more than 4096 pages", "refused", chain_of_pages, "a.tif", refused="holds more than 4096 pages"),
    Case("PNG", "a damaged byte", "refused", flipped_bit(save(GREY, compress_level=0), at=50), "a.png",
         refused="broken"),
    Case("PNG", "alpha, opaque", "dropped", transparent(255), "a.png", np.moveaxis(COLOURS, -1, 0)),
    Case("PNG", "alpha, transparent", "refused", transparent(9), "a.png", refused="has transparent pixels"),
    Case("PNG", "turned by EXIF", "turned upright", rotated, "a.png", GREY[None]),
    Case("JPG", "CMYK", "refused", lambda path: Image.new("CMYK", (3, 2)).save(path), "a.jpg",
         refused="is in the colour space CMYK"),
    Case("NPY", "any", "as stored", lambda path: np.save(path, PHANTOM), "a.npy"),
    Case("NPZ", "several arrays, none named image", "refused",
         lambda path: np.savez(path, y=np.zeros((4, 4)), x=PHANTOM), "a.npz",
         refused=r"holds several arrays \(y, x\), none of them named image"),
    Case("NPZ", "the label's array alone", "refused", lambda path: np.savez(path, label=PHANTOM), "a.npz",
         refused="holds the array label alone, and none named image"),
    Case("NPY", "cut short", "refused", cut_short, "a.npy", refused="is cut short: it has 607 of 608 bytes"),
)  # fmt: skip
IDS = [f"{case.file}, {case.property}" for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_phantom_is_read_as_painted_or_refused(tmp_path: Path, case: Case) -> None:
    path = tmp_path / case.name
    case.make(path)
    is_picture = case.values is not None and case.values.shape[-2:] == GREY.shape
    dims = 2 if is_picture or (case.refused and path.suffix in (".png", ".jpg")) else 3
    if case.refused:
        with pytest.raises(ValueError, match=case.refused):
            load_placed(path, spatial_dims=dims, orientation="RAS")
        return
    image = load_placed(path, spatial_dims=dims, orientation="RAS")
    expected = PHANTOM if case.values is None else case.values
    assert np.array_equal(image.values.numpy(), expected.reshape(image.values.shape).astype(np.float32))
    if path.suffix in (".nii", ".gz", "") or "frames" in case.file:
        assert image.spacing == pytest.approx(SPACING)


@pytest.mark.parametrize("codes", ["LPS", "PIR"])
def test_frames_and_series_are_alike_as_stored(tmp_path: Path, codes: str) -> None:
    phantoms.series(tmp_path / "series", codes)
    phantoms.classic(tmp_path / "classic.dcm", codes)
    phantoms.enhanced(tmp_path / "enhanced.dcm", codes)
    phantoms.nifti(tmp_path / "volume.nii", codes)
    expected, affine = phantoms.turned(codes)
    for name in ("series", "classic.dcm", "enhanced.dcm", "volume.nii"):
        image = load_placed(tmp_path / name, spatial_dims=3)
        assert np.array_equal(image.values[0].numpy(), expected), name
        assert np.allclose(image.affine, affine), name


@pytest.mark.parametrize(
    ("qform", "shift"),
    [
        (np.array([40.0, -30, 20]), "40 mm"),
        (np.diag([2.0, 2, 2]), "12 mm"),
        (np.array([[0.9, -0.44, 0], [0.44, 0.9, 0], [0, 0, 1]]), "3.52 mm"),
    ],
    ids=["shifted", "twice as large", "turned"],
)
def test_a_qform_elsewhere_than_the_sform_is_noted(tmp_path: Path, qform: np.ndarray, shift: str) -> None:
    image, other = phantoms.nifti(tmp_path / "a.nii"), np.eye(4)
    if qform.ndim == 1:
        other[:3, 3] = qform
    else:
        other[:3, :3] = qform
    image.set_qform(other @ image.affine, code=1)
    image.set_sform(image.affine, code=2)
    nibabel.save(image, tmp_path / "a.nii")
    (note,) = open_image(tmp_path / "a.nii").notes
    assert note.startswith(f"contradicts itself: its qform puts corners up to {shift}")


def test_a_small_difference_of_both_forms_is_no_note(tmp_path: Path) -> None:
    image = phantoms.nifti(tmp_path / "a.nii")
    shifted = image.affine.copy()
    shifted[0, 3] += 1.5  # of voxels of 2 mm
    image.set_qform(shifted, code=1)
    image.set_sform(image.affine, code=2)
    nibabel.save(image, tmp_path / "a.nii")
    assert open_image(tmp_path / "a.nii").notes == ()


def test_what_stands_behind_the_values_of_a_compressed_volume_is_bounded(tmp_path: Path) -> None:
    phantoms.nifti(tmp_path / "a.nii")
    path = tmp_path / "b.nii.gz"
    path.write_bytes(gzip.compress((tmp_path / "a.nii").read_bytes() + bytes(SURPLUS_BYTES_MAX + 1)))
    with pytest.raises(ValueError, match="goes on for more than"):
        load_placed(path, spatial_dims=3)


def test_a_picture_that_exif_turns_has_a_note(tmp_path: Path) -> None:
    rotated(tmp_path / "a.jpg")
    assert open_image(tmp_path / "a.jpg").notes == ("is turned as its EXIF tag 6 says: see that its label map is, too",)


@pytest.mark.parametrize(
    ("decoder", "name", "kind"),
    [
        (JPEGLSLosslessDecoder, "MR_small_jpeg_ls_lossless.dcm", "JPEG-LS Lossless Image Compression"),
        (JPEGExtended12BitDecoder, "JPGExtended.dcm", r"JPEG Extended \(Process 2 and 4\)"),
    ],
)
def test_a_compression_that_nothing_here_decodes_is_named_with_the_extra(
    monkeypatch: pytest.MonkeyPatch, decoder: Any, name: str, kind: str
) -> None:
    monkeypatch.setattr(decoder, "_available", {key: use for key, use in decoder._available.items() if key == "pillow"})
    path = Path(pydicom.__file__).parent / "data" / "test_files" / name
    image = open_image(path)
    with pytest.raises(ConfigError, match=rf"^reading DICOM files in {kind} needs .*; run `pip .*\[decoders\]'`$"):
        read_values(path, image)


def test_a_named_pipe_is_no_image_and_no_copy_of_another(tmp_path: Path) -> None:
    pipes = [tmp_path / "a.npy", tmp_path / "b.npy"]
    for pipe in pipes:
        os.mkfifo(pipe)
        with pytest.raises(ValueError, match="is no regular file"):
            open_image(pipe)
    samples = tuple(Sample(pipe.name, (pipe,), label) for label, pipe in enumerate(pipes))
    assert copy_problems(Datalist(samples)) == []


def test_the_page_has_the_table() -> None:
    rows: dict[tuple[str, str], list[str]] = {}
    for case in CASES:
        kind = re.sub(r"^axes .*", "axes in any direction", case.property)
        rows.setdefault((kind, case.result), [])
        if case.file not in rows[kind, case.result]:
            rows[kind, case.result].append(case.file)
    lines = [f"| {', '.join(files)} | {kind} | {result} |" for (kind, result), files in rows.items()]
    table = "\n".join(["| format | property | what happens |", "|---|---|---|", *lines])
    assert table in PAGE.read_text(), f"deploy/data.md lacks this table:\n{table}"
