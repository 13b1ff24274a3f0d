"""What an experiment's file may say, and what is said about one that is wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest

from peer.core.tasks import MINOR
from peer.errors import ConfigError
from peer.lab.experiments.experiment import Experiment
from peer.lab.experiments.result_files import CENTRALISED
from peer.methods.registry import PLANS
from peer.site.config import toml
from peer.site.config.schema import FederationConfig, SiteConfig, check_site

Write = Callable[..., Path]
EXAMPLES = Path(__file__).parents[4] / "deploy" / "examples"
PUBLIC = {"[data]\n": '[data]\npublic = "public.json"\n'}
PUBLIC_SHA256 = {False: "", True: f'public_sha256 = "{"ab" * 32}"\n'}
"""The key of a row, by whether its method predicts a public set."""
LOCAL = "[methods.local]\n"
PAPER = {"steps = 2\n": "steps = 2\npaper = true\n"}


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("[methods.fedsdk]\n", "unknown method 'fedsdk' (did you mean 'fedskd'?)"),
        ("[methods.fedskd]\ngama = 1.0\n", "methods.fedskd.gama: unknown key (did you mean 'gamma'?)"),
        ("[methods.fedskd]\ngamma = -1.0\n", "methods.fedskd.gamma"),
        ("[methods.fedskd.stages.trian]\ncount = 1\n", "unknown stage (did you mean 'train'?)"),
        (LOCAL + "paper.trian = {}\n", "paper.trian: unknown stage (did you mean 'train'?)"),
        ('[methods.fedskd]\nmodels = ["mixd"]\n', "no such set 'mixd' (did you mean 'mixed'?)"),
        ('[methods."w/o"]\nmethod = "local"\n', "'w/o' names folders"),
        (LOCAL + '[links.gone]\nremoved = ["asien"]\n', "'asien' is no site (did you mean 'asia'?)"),
        (LOCAL + "[links.all]\nloss = 0.5\n", "links.all: is the name of the undisturbed federation"),
        ('[methods.fedskd]\n[links.bad]\ninsider = "asia"\n', "an insider has an act, and an act an insider"),
        ('[methods.fedskd]\n[links.bad]\nmethods = ["fedavg"]\n', "links.bad.methods: no such row 'fedavg'"),
        ('[methods.fedskd]\n[links.bad]\ninsider = "mars"\nact = "zero"\n', "links.bad.insider: 'mars' is no site"),
        (
            LOCAL + '[methods."a.local"]\nmethod = "local"\n[links."all.a"]\nremoved = ["asia"]\n',
            "two federations would both be called 'even.mixed.all.a.local'",
        ),
    ],
)
def test_a_wrong_row_or_link_is_refused_by_name(experiment: Write, methods: str, message: str) -> None:
    refuses(experiment(methods), message)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("rounds = 2", "round = 2", "round: unknown key (did you mean 'rounds'?)"),
        ("seeds = [0]", "seeds = [0, 1, 0]", "seeds: one is there twice"),
        ("classes = 2", "classes = 1", "classification needs at least 2"),
        ("test_share = 0.25", "folds = 1", "one fold has nothing to train on"),
        ("test_share = 0.25", "test_share = 0.25\nfolds = 5", "folds decide already"),
        ('pool = "pool/pool.json"', 'dataset = "digit"', "did you mean 'digits'?"),
        ("[8, 8]", "[8, 8]\nscales = {asai = 2}", "data.scales: 'asai' is no site (did you mean 'asia'?)"),
        (
            "[8, 8]",
            "[8, 8]\nvalidation_shares = {asai = 0.1}",
            "data.validation_shares: 'asai' is no site (did you mean 'asia'?)",
        ),
        ("[8, 8]", "[8, 8]\nvalidation_shares = {asia = 1.0}", "data.validation_shares.asia"),
        ('kind = "equal"', 'kind = "equl"', "unknown partition 'equl' (did you mean 'equal'?)"),
        ("africa = {", "afrika = {", "has no network for 'africa'"),
        ('asia = {name = "resnet10"', 'asia = {name = "resnet100"', "models.mixed.asia: unknown network"),
        ("width = 5", "breadth = 5", "models.mixed.asia.breadth: unknown key"),
        ("width = 5", "width = 0", "width must be a whole number from 1 on"),
        (
            "[training]\n",
            "[training]\nprocesses = 2\n",
            "training.processes: a run trains in one process; `--jobs` has several runs at a time",
        ),
    ],
)
def test_a_wrong_table_is_refused_by_name(experiment: Write, before: str, after: str, message: str) -> None:
    refuses(experiment(LOCAL, replace={before: after}), message)


def test_a_share_for_the_test_beside_folds_is_refused(experiment: Write) -> None:
    changes = {"test_share = 0.25": "folds = 5", 'kind = "equal"': 'kind = "equal"\ntest_share = 0.5'}
    refuses(experiment(LOCAL, replace=changes), "partitions.even.test_share: folds decide already")


def test_a_method_without_a_place_for_a_later_site_is_refused(experiment: Write) -> None:
    later = '[[links.later.epochs]]\nfrom_round = 2\nadd = ["asia"]\n'
    path = experiment("[methods.kt_pfl]\n" + PUBLIC_SHA256[True] + later, replace=PUBLIC)
    refuses(path, "links.later.methods: kt_pfl has no place for a site that joins later")


def test_feddal_needs_a_proxy(experiment: Write) -> None:
    table = '[proxy]\nname = "resnet10"\nwidth = 4\nmax_pool = false\n'
    refuses(experiment("[methods.feddal]\n", replace={table: ""}), "methods.feddal: needs the table [proxy]")


def refuses(path: Path, message: str) -> None:
    """Loading fails, and names the file and what is wrong."""
    with pytest.raises(ConfigError, match=r"experiment\.toml") as caught:
        Experiment.load(path)
    assert message in str(caught.value)


@pytest.mark.parametrize("method", sorted(PLANS))
def test_every_method_gets_a_federation_that_daemons_would_take(experiment: Write, method: str) -> None:
    dense = {'kind = "classification"': 'kind = "segmentation"'} if "classification" in PLANS[method].not_for else {}
    row = f"[methods.{method}]\n" + PUBLIC_SHA256[PLANS[method].public]
    loaded = Experiment.load(experiment(row, replace=PUBLIC | dense))
    text = loaded.federation_text(method, "mixed", ("africa", "asia"), seed=3)
    federation = FederationConfig.parse(text, "text")
    assert federation.method.name == method
    rounds = 2 if PLANS[method].predicts else 1
    assert (federation.rounds, federation.seed, tuple(federation.roster)) == (rounds, 3, ("africa", "asia"))


def test_every_method_does_the_same_steps_on_what_is_evaluated(experiment: Write) -> None:
    plans = {name: plan for name, plan in PLANS.items() if "classification" not in plan.not_for}
    rows = "".join(f"[methods.{name}]\n" + PUBLIC_SHA256[plan.public] for name, plan in plans.items())
    loaded = Experiment.load(experiment(rows, replace=PUBLIC))
    for name, plan in plans.items():
        stages = loaded.stages(name)
        assert stages.keys() == plan.stages.keys()
        main = [keys for stage, keys in stages.items() if stage not in MINOR]
        assert main, name
        for keys in main:
            assert keys == {"unit": "step", "count": 2, "learning_rate": 1e-3, "weight_decay": 0.0}


def test_the_papers_budget_is_the_plans(experiment: Write) -> None:
    loaded = Experiment.load(experiment("[methods.dflmoe.stages.decide]\ncount = 9\n", replace=PAPER))
    assert loaded.stages("dflmoe") == {"decide": {"count": 9}}
    federation = FederationConfig.parse(loaded.federation_text("dflmoe", "mixed", ("asia",), seed=0), "text")
    assert federation.work("local") == PLANS["dflmoe"].stages["local"]
    assert federation.work("decide").count == 9


def test_a_rows_own_budget_holds_with_the_papers_alone(experiment: Write) -> None:
    row = "[methods.local]\npaper.train = {unit = 'epoch', count = 5}\n"
    equal = Experiment.load(experiment(row))
    assert equal.stages("local") == {"train": {"unit": "step", "count": 2, "learning_rate": 1e-3, "weight_decay": 0.0}}
    paper = Experiment.load(experiment(row, replace=PAPER))
    assert paper.stages("local") == {"train": {"unit": "epoch", "count": 5}}


def test_one_model_for_all_is_left_out_where_sites_differ(experiment: Write) -> None:
    alike = '\n[models.alike]\n"*" = {name = "resnet5", width = 4, max_pool = false}\n'
    rows = "[methods.fedavg]\n[methods.local]\n"
    loaded = Experiment.load(experiment(rows, replace={"\n[proxy]": f"{alike}\n[proxy]"}))
    combinations = {(network_set, label) for _, network_set, _, label in loaded.combinations()}
    assert combinations == {("alike", "fedavg"), ("alike", "local"), ("mixed", "local")}
    text = loaded.federation_text("fedavg", "alike", ("asia", "europe"), seed=0)
    shared = FederationConfig.parse(text, "text").shared_model
    assert shared.name == "resnet5"


def test_titles_and_networks_of_any_form_reach_both_files(experiment: Write) -> None:
    network = '{name = "monai.networks.nets.ResNet", norm = ["INSTANCE", {affine = true}], act = {name = "relu"}}'
    title = r'"\U0001F600 \"Größe\"\n"'
    models = f'[models.alike]\n"*" = {network}\n[models.mixed]'
    path = experiment("[methods.fedavg]\n", replace={'"Synthetic squares"': title, "[models.mixed]": models})
    loaded = Experiment.load(path)
    hyper = {"norm": ["INSTANCE", {"affine": True}], "act": {"name": "relu"}}
    federation = FederationConfig.parse(loaded.federation_text("fedavg", "alike", ("asia",), seed=0), "text")
    assert federation.description == loaded.title == '\N{GRINNING FACE} "Größe"\n'
    assert federation.shared_model.__pydantic_extra__ == hyper
    site = toml.parse(loaded.site_text("asia", "alike", next(iter(loaded.methods)), root=".", regions=None), "text")
    assert site["model"]["parameters"] == hyper
    check_site(federation, toml.validate(SiteConfig, site, "text"), "asia")


def test_links_are_lost_only_where_something_is_sent(experiment: Write) -> None:
    links = '[links.half]\nloss = 0.5\n[links.fewer]\nremoved = ["asia"]\nmethods = ["local"]\n'
    loaded = Experiment.load(experiment(f"[methods.local]\n[methods.fedskd]\n[methods.{CENTRALISED}]\n{links}"))
    combinations = [(links, label) for _, _, links, label in loaded.combinations()]
    assert ("half", "fedskd") in combinations
    assert ("half", "local") not in combinations
    assert ("fewer", "local") in combinations
    assert ("fewer", "fedskd") not in combinations, "these links name their rows"
    assert loaded.method_name(CENTRALISED) == "local"


def test_a_row_names_the_package_of_its_method(
    experiment: Write, distribution: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = '[methods.averaged]\nmethod = "fedper"\npackage = "mhfl-example==1.0"\n'
    with pytest.raises(ConfigError, match=r"experiment.toml: method 'fedper' comes with .* get mhfl-example==1.0 from"):
        Experiment.load(experiment(row))
    with pytest.raises(ConfigError, match=r"methods.averaged: unknown method 'fedper'"):
        Experiment.load(experiment('[methods.averaged]\nmethod = "fedper"\n'))
    monkeypatch.syspath_prepend(EXAMPLES / "plugin")
    distribution("mhfl-example", "1.0", "mhfl_peer.methods", fedper="mhfl_example.plan:FEDPER")
    loaded = Experiment.load(experiment(row))
    federation = FederationConfig.parse(loaded.federation_text("averaged", "mixed", ("asia",), seed=0), "text")
    assert federation.method.model_dump() == {
        "name": "fedper", "package": "mhfl-example==1.0", "segmentation_loss": "dice_ce",
    }  # fmt: skip


def test_data_sets_and_networks_of_packages_are_known(experiment: Write, distribution: Callable[..., None]) -> None:
    replace = {
        'pool = "pool/pool.json"': 'dataset = "figures"',
        'asia = {name = "resnet10"': 'asia = {name = "small_net"',
    }
    with pytest.raises(ConfigError, match="unknown data set 'figures'"):
        Experiment.load(experiment(LOCAL, replace=replace))
    distribution("some-data", "1.0", "mhfl_peer.datasets", figures="peer.lab.datasets.digits")
    with pytest.raises(ConfigError, match=r"models.mixed.asia: unknown network 'small_net'"):
        Experiment.load(experiment(LOCAL, replace=replace))
    distribution("some-nets", "1.0", "mhfl_peer.models", small_net="models.resnet:resnet5")
    loaded = Experiment.load(experiment(LOCAL, replace=replace))
    assert (loaded.data.dataset, loaded.model("mixed", "asia").name) == ("figures", "small_net")


def test_leaving_sites_out_needs_three_of_them(experiment: Write) -> None:
    changes = {"rounds = 2\n": "rounds = 2\nleave_one_site_out = true\n"}
    loaded = Experiment.load(experiment(replace=changes))
    assert loaded.left_out_by_links == {f"leave-out-{site}": site for site in ("africa", "asia", "europe")}
    two = {'sites = ["africa", "asia", "europe"]': 'sites = ["africa", "asia"]', "europe = {name": '"*" = {name'}
    with pytest.raises(ConfigError, match="leave_one_site_out: needs three sites in every partition"):
        Experiment.load(experiment(replace=changes | two))


def test_a_row_has_the_batch_size_of_its_paper_with_the_papers_work_alone(experiment: Write) -> None:
    row = "[methods.mh_pflid]\npaper_batch_size = 2\n[methods.local]\n"
    equal = Experiment.load(experiment(row))
    paper = Experiment.load(experiment(row, replace=PAPER))
    assert [equal.batch_size(label) for label in ("mh_pflid", "local")] == [4, 4]
    assert [paper.batch_size(label) for label in ("mh_pflid", "local")] == [2, 4]
    site = toml.parse(paper.site_text("asia", "mixed", "mh_pflid", root=None, regions=None), "text")
    assert site["training"]["batch_size"] == 2


def test_a_run_supervises_as_the_experiment_says(experiment: Write) -> None:
    keys = "class_weights = [1.0, 3.0]\nlabel_smoothing = 0.1\nclip_norm = 1.0\n"
    loaded = Experiment.load(experiment(replace={"[training]\n": f"[training]\n{keys}"}))
    site = toml.parse(loaded.site_text("asia", "mixed", "fedskd", root=None, regions=None), "text")
    training = toml.validate(SiteConfig, site, "text").training
    assert (training.class_weights, training.label_smoothing, training.clip_norm) == ((1.0, 3.0), 0.1, 1.0)


def test_a_row_may_use_older_artifacts_where_its_method_can(experiment: Write) -> None:
    rows = '[methods.fedskd]\n[methods.older]\nmethod = "fedskd"\nstaleness = 1\n'
    loaded = Experiment.load(experiment(rows))
    drafts = [loaded.federation_draft(label, "mixed", "asia", seed=0) for label in ("fedskd", "older")]
    assert [draft["schedule"].get("staleness") for draft in drafts] == [None, 1]
    with pytest.raises(ConfigError, match=r"methods.older.staleness: fedcross circulates models"):
        Experiment.load(experiment(rows.replace('method = "fedskd"', 'method = "fedcross"')))


def test_a_rows_shared_model_is_the_network_of_every_site_unless_it_is_beside_it(experiment: Write) -> None:
    beside = '[methods.feddal]\nshared_model = {name = "linear", projection = 4}\n'
    itself = '[methods.alone]\nmethod = "local"\nshared_model = {name = "linear", projection = 4}\n'
    loaded = Experiment.load(experiment(beside + itself))
    texts = [loaded.site_text("asia", "mixed", label, root=None, regions=None) for label in ("feddal", "alone")]
    models = [toml.parse(text, "text")["model"] for text in texts]
    assert models[0]["name"] == "resnet10"
    assert models[1] == {"name": "linear", "parameters": {"projection": 4}}


def test_sites_set_aside_shares_of_their_own_for_validation(experiment: Write) -> None:
    shares = "input_size = [8, 8]\nvalidation_share = 0.1\nvalidation_shares = {asia = 0.25, europe = 0.0}"
    loaded = Experiment.load(experiment(LOCAL, replace={"input_size = [8, 8]": shares}))
    texts = [loaded.site_text(site, "mixed", "local", root=None, regions=None) for site in ("africa", "asia", "europe")]
    assert [toml.parse(text, "text")["data"]["validation_share"] for text in texts] == [0.1, 0.25, 0.0]


def test_only_the_larger_clients_of_fed_isic_set_samples_aside() -> None:
    """FedDAL, section 3.1.1: 8689/1241, 2768/395 and 2654/336; of the small ones it names no validation."""
    loaded = Experiment.load(EXAMPLES / "experiments" / "feddal-1-isic-heterogeneous.toml")
    (partition,) = loaded.partitions.values()
    texts = [loaded.site_text(site, "heterogeneous", "feddal", root=None, regions=None) for site in partition.sites]
    shares = [toml.parse(text, "text")["data"]["validation_share"] for text in texts]
    assert shares == [0.125, 0.125, 0.125, 0.0, 0.0, 0.0]


def test_a_row_s_rule_is_its_federation_s_and_those_without_weights_ignore_the_samples(experiment: Write) -> None:
    rows = "".join(
        f'[methods.{rule}]\nmethod = "fedavg"\naggregate = "{rule}"\n' for rule in ("mean", "capped", "median")
    )
    loaded = Experiment.load(experiment(rows, replace={"rounds = 2\n": 'rounds = 2\nweighting = "samples"\n'}))
    parsed = {
        label: FederationConfig.parse(loaded.federation_text(label, "mixed", ("africa", "asia"), seed=0), label)
        for label in loaded.methods
    }
    assert {label: (each.aggregate.rule, each.weighting) for label, each in parsed.items()} == {
        "mean": ("mean", "samples"),
        "capped": ("capped", "samples"),
        "median": ("median", "uniform"),
    }


def test_a_boost_is_a_backdoor_s_alone(experiment: Write) -> None:
    links = '[links.bad]\ninsider = "asia"\nact = "{}"\nboost = 2\n'
    assert Experiment.load(experiment(LOCAL + links.format("backdoor"))).links["bad"].boost == 2
    with pytest.raises(ConfigError, match=r"links.bad.act: a backdoor is a mark on images, which have one class each"):
        Experiment.load(
            experiment(LOCAL + links.format("backdoor"), replace={'kind = "classification"': 'kind = "segmentation"'})
        )
    with pytest.raises(ConfigError, match=r'links.bad.boost: is of the act "backdoor" alone'):
        Experiment.load(experiment(LOCAL + links.format("zero")))
