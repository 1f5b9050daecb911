"""The published schemas of custom resources, where a folder of them is named; import as
`from published_schemas import published_schema`."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

# A folder with the YAML files of the CRDs: kubeflow.org_pytorchjobs.yaml of kubeflow/training-operator (release-1.9),
# trainer.kubeflow.org_trainjobs.yaml and _trainingruntimes.yaml of kubeflow/trainer, under manifests/base/crds there.
FOLDER = "HF_RECIPES_CRDS"
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def published_schema(kind, version):
    """The schema of a kind, made strict (a cluster drops unknown keys, here they are refused); None without a file."""
    for file in sorted(Path(os.environ.get(FOLDER, "nowhere")).glob("*.yaml")):
        crd = yaml.load(file.read_text(), Loader=_Loader)
        if crd["spec"]["names"]["kind"] == kind:
            return next(
                strict(each["schema"]["openAPIV3Schema"]) for each in crd["spec"]["versions"] if each["name"] == version
            )
    return None


def strict(schema):
    """Refuse keys that are not listed, and read Kubernetes' own words for JSON schema's."""
    if not isinstance(schema, dict):
        return schema
    result = {key: _strict_part(key, part) for key, part in schema.items()}
    if schema.get("properties") and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
    return result


def _strict_part(key, part):
    if key == "properties":
        return {name: strict(each) for name, each in part.items()}
    return strict(part) if isinstance(part, dict) else part
