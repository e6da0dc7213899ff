"""Manifests: tables of samples beside shards, and queries over them."""

from fastshard.typed.manifest.aggregates import (
    CategoricalAggregate as CategoricalAggregate,
)
from fastshard.typed.manifest.aggregates import NumericAggregate as NumericAggregate
from fastshard.typed.manifest.aggregates import SetAggregate as SetAggregate
from fastshard.typed.manifest.aggregates import create_aggregate as create_aggregate
from fastshard.typed.manifest.builder import ManifestBuilder as ManifestBuilder
from fastshard.typed.manifest.executor import QueryExecutor as QueryExecutor
from fastshard.typed.manifest.executor import SampleLocation as SampleLocation
from fastshard.typed.manifest.fields import AggregateKind as AggregateKind
from fastshard.typed.manifest.fields import ManifestField as ManifestField
from fastshard.typed.manifest.fields import query_fields as query_fields
from fastshard.typed.manifest.fields import (
    resolve_manifest_fields as resolve_manifest_fields,
)
from fastshard.typed.manifest.shard_manifest import (
    MANIFEST_FORMAT_VERSION as MANIFEST_FORMAT_VERSION,
)
from fastshard.typed.manifest.shard_manifest import ShardManifest as ShardManifest
from fastshard.typed.manifest.writer import ManifestWriter as ManifestWriter
from fastshard.where.predicate import F as F
from fastshard.where.predicate import FieldProxy as FieldProxy
from fastshard.where.predicate import Predicate as Predicate
