"""The methods by name: built-in ones are listed here, installed packages have an entry point for theirs.

This module and every plan are free of torch: the daemon reads them, too.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re

from models.spec import interface_problem
from peer.core.plan import Plan
from peer.errors import ConfigError
from peer.methods.apfl.plan import APFL
from peer.methods.averaging.plan import FEDAVG, FEDBN, FEDPROX, LG_FEDAVG
from peer.methods.dflmoe.plan import DFLMOE, DFLMOE_AVERAGED, DFLMOE_MODELS
from peer.methods.dfml.plan import DFML
from peer.methods.ditto.plan import DITTO
from peer.methods.fedcross.plan import FEDCROSS
from peer.methods.feddal.plan import FEDDAL
from peer.methods.fedproto.plan import FEDPROTO
from peer.methods.fedrep.plan import FEDREP
from peer.methods.fedskd.plan import FEDSKD
from peer.methods.fedsm.plan import FEDSM
from peer.methods.fedtgp.plan import FEDTGP
from peer.methods.fedvisit.plan import FEDVISIT, FEDVISIT_TWIN
from peer.methods.finetuning.plan import FEDAVG_FT, FEDCROSS_FT, FEDPROX_FT
from peer.methods.lc_fed.plan import LC_FED
from peer.methods.local.plan import LOCAL
from peer.methods.mh_pflid.plan import MH_PFLID
from peer.methods.pooled_head.plan import POOLED_HEAD
from peer.methods.proxyfl.plan import PROXYFL
from peer.methods.public_distillation.plan import DS_PFL, FEDDF, FEDMD, KT_PFL, PFEDDF
from peer.methods.scaffold.plan import SCAFFOLD, SCAFFOLD_FT
from peer.methods.statistics.plan import STATISTICS

PLANS: dict[str, Plan] = {
    "local": LOCAL,
    "fedskd": FEDSKD,
    "fedvisit": FEDVISIT,
    "fedvisit_twin": FEDVISIT_TWIN,
    "mh_pflid": MH_PFLID,
    "feddal": FEDDAL,
    "dflmoe": DFLMOE,
    "dflmoe_models": DFLMOE_MODELS,
    "dflmoe_averaged": DFLMOE_AVERAGED,
    "fedcross": FEDCROSS,
    "proxyfl": PROXYFL,
    "fedavg": FEDAVG,
    "fedprox": FEDPROX,
    "fedbn": FEDBN,
    "lg_fedavg": LG_FEDAVG,
    "fedavg_ft": FEDAVG_FT,
    "fedprox_ft": FEDPROX_FT,
    "fedcross_ft": FEDCROSS_FT,
    "ditto": DITTO,
    "fedrep": FEDREP,
    "fedsm": FEDSM,
    "lc_fed": LC_FED,
    "fedproto": FEDPROTO,
    "fedtgp": FEDTGP,
    "pooled_head": POOLED_HEAD,
    "statistics": STATISTICS,
    "scaffold": SCAFFOLD,
    "scaffold_ft": SCAFFOLD_FT,
    "apfl": APFL,
    "dfml": DFML,
    "fedmd": FEDMD,
    "feddf": FEDDF,
    "pfeddf": PFEDDF,
    "ds_pfl": DS_PFL,
    "kt_pfl": KT_PFL,
}
"""The built-in methods."""

ENTRY_POINTS = "mhfl_peer.methods"
"""The group in which an installed package names its plans: ``name = "module:PLAN"``."""
PACKAGE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9._+!-]*)")


class PackageMissing(ConfigError):  # noqa: N818 - the name is the fact
    """The package of the federation's method is not installed here, or in another version."""


def installed_methods() -> list[tuple[str, str]]:
    """Return the names of installed packages' methods, and the packages as federation.toml names them."""
    return sorted((name, package) for name, package in _entry_points() if name not in PLANS)


def method_names() -> list[str]:
    """Return the names of all methods on this machine, the built-in ones first."""
    return list(dict.fromkeys([*PLANS, *(name for name, _ in installed_methods())]))


@functools.cache
def find_plan(name: str, package: str | None = None) -> Plan:
    """Find the plan of a method.

    Args:
        name: of the method.
        package: ``DISTRIBUTION==VERSION``, for a method that is not built in.

    Raises:
        PackageMissing: the package is not installed in this version; the remedy says how to install
            it.
        ConfigError: there is no such method, or its entry point names no plan.
    """
    if name in PLANS:
        if package is not None:
            raise ConfigError(f"method {name!r} is built in, and comes with no package", "leave package out")
        return PLANS[name]
    entry_points = _entry_points()
    if package is None:
        packages = [package for key, package in entry_points if key == name]
        if not packages:
            raise ConfigError(f"unknown method {name!r}", "`mhfl-peer methods` lists all that are here")
        raise ConfigError(
            f"method {name!r} comes with a package, which must be the same one at every site",
            f'write package = "{packages[0]}" below the name of the method',
        )
    matching = [point for (key, pin), point in entry_points.items() if (key, _normal(pin)) == (name, _normal(package))]
    if not matching:
        raise _missing(name, package)
    distribution = matching[0].dist
    if distribution is not None and (problem := interface_problem(distribution)) is not None:
        raise ConfigError(f"method {name!r}: {problem}", "install a version of the package that fits")
    try:
        plan = matching[0].load()
    except Exception as error:  # a third party's module
        raise ConfigError(f"the plan of method {name!r} in {package} cannot be loaded: {error}") from error
    if not isinstance(plan, Plan):
        raise ConfigError(f"method {name!r} in {package} names no plan, but {plan!r}", "ask the makers of the package")
    return plan


def _normal(package: str) -> str:
    """Normalise the distribution's name in the package as pip does."""
    distribution, equals, version = package.partition("==")
    return re.sub(r"[-_.]+", "-", distribution).lower() + equals + version


def _entry_points() -> dict[tuple[str, str], importlib.metadata.EntryPoint]:
    """Return the entry points of installed plans, by name and package."""
    entry_points = {}
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if entry_point.dist is not None:
            entry_points[entry_point.name, f"{entry_point.dist.name}=={entry_point.dist.version}"] = entry_point
    return entry_points


def _missing(name: str, package: str) -> ConfigError:
    """Build the error about a package that does not provide the method on this machine."""
    match = PACKAGE.fullmatch(package)
    if match is None:
        return ConfigError(f"package = {package!r} of method {name!r} is not DISTRIBUTION==VERSION")
    distribution, version = match.groups()
    installed: str | None
    try:
        installed = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        installed = None
    if installed == version:
        return ConfigError(f"{package} has no method {name!r}", "`mhfl-peer methods` lists all that are here")
    instead = "which is not installed" if installed is None else f"but {installed} is installed"
    # A name in federation.toml may be free in a package index: whoever registers it there must get no code in here.
    remedy = f"get {package} from its authors, and install that file in the environment of mhfl-peer"
    return PackageMissing(f"method {name!r} comes with {package}, {instead}", remedy)
