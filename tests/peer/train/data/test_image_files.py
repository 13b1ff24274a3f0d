"""A phantom with marked corners in every format and with every property; the table of deploy/data.md."""

import gzip
import os
import re
import struct
import zlib
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
from peer.train.data.image_files import SURPLUS_BYTES_MAX, open_image, read_values
from peer.train.images import load_placed
from tests.fakes import phantoms
from tests.fakes.phantom_files import (
    COLOURS,
    GREY,
    WORDS,
    add_notes,
    add_report,
    chain_of_pages,
    change_slices,
    copy_of_slice,
    cut_last_slice,
    cut_short,
    damaged_checksum,
    dicom_palette,
    flipped_bit,
    floating_pixels,
    header_alone,
    image_file,
    in_metres,
    longer,
    mirrored,
    more_compressed_frames,
    more_frames,
    nifti_changed,
    one_slice_unlike,
    page_and_mask,
    pages,
    palette,
    pyramid,
    renamed_slice,
    rescaled_file,
    rotated,
    save,
    scaled,
    series,
    stored_in_gzip,
    tiff,
    transparent,
    turned_page,
    two_floating_frames,
    two_frames,
    two_frames_of_runs,
    whole_slices,
    without_codes,
)
from tests.fakes.phantoms import PHANTOM, SPACING, real_world

PAGE = Path(__file__).parents[4] / "deploy/data.md"


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
    *(Case("NIfTI", "more values than its header says", "refused", longer(whole_slices), name,
           refused="goes on for more than 29 bytes after the values of its header") for name in ("a.nii", "a.nii.gz")),
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
    *(Case("DICOM series", "slices of two patients, frames of reference, units or components of complex values",
           "refused", series(one_slice_unlike(**tags)), "a", refused=reason)
      for tags, reason in (
          ({"PatientID": "B"}, "its slices differ in PatientID$"),
          ({"FrameOfReferenceUID": "1.2.9"}, r"FrameOfReferenceUID: 1.2.8 \(3 files\), 1.2.9 \(1 files\)"),
          ({"Units": "CNTS"}, r"differ in Units: BQML \(3 files\), CNTS \(1 files\)"),
          ({"ImageType": ["ORIGINAL", "PRIMARY", "P"]}, "hold different components of complex values"))),
    *(Case("DICOM series", "types of images that name no component of complex values", AS_PAINTED,
           series(one_slice_unlike(ImageType=kind)), "a")
      for kind in ("ORIGINAL", ["ORIGINAL", "PRIMARY"], ["ORIGINAL", "PRIMARY", "DIFFUSION"],
                   ["ORIGINAL", "PRIMARY", "M_FFE"])),
    *(Case("DICOM series", "a slice that is compressed, or whose transfer did not end", "refused",
           series(renamed_slice(suffix)), "a", refused=f"^c.dcm{suffix}: ") for suffix in (".gz", ".part")),
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
    Case("DICOM with frames, enhanced", "a rescaling of the file and slopes of the frames", "refused",
         lambda path: (phantoms.enhanced(path, slope=0.5), phantoms.change(path, RescaleSlope=2, RescaleIntercept=0)),
         "a.dcm", refused="has RescaleSlope and RescaleIntercept, and slopes of its frames besides"),
    Case("DICOM with frames, enhanced", "real world values by the rescaling of the file", "applied once",
         rescaled_file(2), "a.dcm", values=PHANTOM * 2),
    Case("DICOM with frames, enhanced", "real world values and another rescaling of the file", "refused",
         rescaled_file(3), "a.dcm", refused="RescaleSlope 2 .* another real world value mapping, slope 3"),
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
    Case("DICOM, one image", "padding of floating-point pixels", "gets the lowest measured value", floating_pixels,
         "a.dcm", np.where(WORDS == 60000, 3000, WORDS)[None]),
    *(Case("DICOM, one image", "a slope without an intercept, or the reverse", "refused", image_file(WORDS, **tags),
           "a.dcm", refused=f"has a {key} and no") for key, tags in (
               ("RescaleSlope", {"RescaleSlope": 2}), ("RescaleIntercept", {"RescaleIntercept": -1024}))),
    Case("DICOM, one image", "a slope that is no number", "refused",
         image_file(WORDS, RescaleSlope=None, RescaleIntercept=0), "a.dcm", refused="RescaleSlope '' and .*no numbers"),
    *(Case("DICOM, one image", "a rescaling besides a modality LUT or a dose scaling", "refused",
           image_file(WORDS, RescaleSlope=2, RescaleIntercept=0, **tags), "a.dcm", refused=f"and {key} besides")
      for key, tags in (("ModalityLUTSequence", {"ModalityLUTSequence": [pydicom.Dataset()]}),
                        ("DoseGridScaling", {"DoseGridScaling": 0.5}))),
    Case("DICOM, one image", "a dose without its scaling", "refused", image_file(WORDS, Modality="RTDOSE"), "a.dcm",
         refused="stores a dose and has no DoseGridScaling"),
    *(Case("DICOM, one image", "two fields that contradict each other on what is black", "refused",
           image_file(WORDS, PhotometricInterpretation=colours, PresentationLUTShape=shape), "a.dcm",
           refused=f"contradicts itself: {colours}, with PresentationLUTShape {shape}")
      for colours, shape in (("MONOCHROME1", "IDENTITY"), ("MONOCHROME2", "INVERSE"))),
    *(Case("DICOM, one image", "the pixels of more frames than it says", "refused", make, "a.dcm",
           refused="says that it has 1 frame, and holds the pixels of 2")
      for make in (two_frames, two_frames_of_runs, two_floating_frames)),
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
         series(lambda paths: paths[1].write_bytes(b"damaged")), "a",
         refused="^d.dcm: is missing DICOM's preamble: it is damaged, or no DICOM file by PS3.10$"),
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
    *(Case("TIF", "pages that are channels or moments", "refused",
           lambda path, text=text: Image.fromarray(GREY).save(path, save_all=True, description=text,
                                                              append_images=[Image.fromarray(GREY)] * 2), "a.tif",
           refused=r"its pages are not slices alone \((axis [CT]|sizec) = 3\)")
      for text in ('{"axes": "CYX", "shape": [3, 2, 3]}', '{"axes": "TYX"}', '<Pixels SizeC="3" SizeZ="1"/>')),
    Case("TIF", "colours, 8 bits", AS_PAINTED, save(COLOURS, description='<Pixels SizeC="3" SizeZ="1"/>'), "a.tif",
         np.moveaxis(COLOURS, -1, 0)),
    *(Case("TIF", "a description of the picture that it was made from, or free text", AS_PAINTED,
           save(GREY, description=text), "a.tif", GREY[None])
      for text in ('{"shape": [64, 64]}', '{"shape": [5, 4, 6, 3]}', "channels=3, frames = 30 per second",
                   '{"a":' * 20_000)),
    *(Case("TIF", "fewer pages than its description says", "refused", save(GREY, description=text), "a.tif",
           refused="says that it has 4 slices, and has a page for 1")
      for text in ("ImageJ=1.53t\nimages=4\nslices=4\n", '{"shape": [4, 2, 3]}')),
    Case("TIF", "a mask or a preview among its pages", "refused", page_and_mask, "a.tif",
         refused="says that page 2 is a mask or a preview"),
    *(Case("TIF", "values that are to be calibrated or scaled", "refused", save(GREY, **options), "a.tif",
           refused=r"says that its values are to be (calibrated \(cf = 0, c0 = -1024, c1 = 1\)|scaled \(scale = 0.1\))")
      for options in (
          {"description": "ImageJ=1.53t\ncf=0\nc0=-1024\nc1=1\nvunit=HU\n"},
          {"tiffinfo": {42112: '<Item name="SCALE" sample="0" role="scale">0.1</Item>'}})),
    *(Case("TIF", "grey, 8 bits", AS_PAINTED, save(GREY, description=text), "a.tif", GREY[None])  # neutral calibrations
      for text in ("ImageJ=1.53t\nimages=1\ncf=0\nc0=0.0\nc1=1.0\n", "ImageJ=1.53t\ncf=20\n", "{broken")),
    *(Case("TIF", "turned by its orientation", "turned upright", turned_page(turn), "a.tif", GREY[None])
      for turn in range(2, 9)),
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
    Case("NPY", "something behind its array", "refused", longer(lambda path: np.save(path, PHANTOM)), "a.npy",
         refused="goes on for 60 bytes after its array"),
    Case("NPY", "any", "as stored", lambda path: np.save(path, PHANTOM), "a.npy"),
    Case("NPZ", "several arrays, none named image", "refused",
         lambda path: np.savez(path, y=np.zeros((4, 4)), x=PHANTOM), "a.npz",
         refused=r"holds several arrays \(y, x\), none of them named image"),
    *(Case("NPZ", "the label's array alone", "refused", lambda path, name=name: np.savez(path, **{name: PHANTOM}),
           "a.npz", refused=f"holds the array {name} alone, and none named image") for name in ("label", "Mask", "y")),
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


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_grey_label_map_of_few_bits_has_the_values_of_its_file(tmp_path: Path, bits: int) -> None:
    values = (np.arange(16) % (1 << bits)).astype(np.uint8).reshape(2, 8)
    rows = np.packbits(np.unpackbits(values[..., None], axis=-1)[..., -bits:].reshape(2, -1), axis=-1)
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", 8, 2, bits, 0, 0, 0, 0),)
    chunks += (b"IDAT" + zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows)), b"IEND")
    parts = [struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in chunks]
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    read = read_values(tmp_path / "a.png", open_image(tmp_path / "a.png", key="label"))
    assert np.array_equal(read[0], values)


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


def test_a_unit_of_length_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    image = phantoms.nifti(tmp_path / "a.nii")
    image.header["xyzt_units"] = 7
    nibabel.save(image, tmp_path / "a.nii")
    with pytest.raises(ValueError, match=r"says its lengths in an unknown unit \(xyzt_units 7\)"):
        open_image(tmp_path / "a.nii")


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
