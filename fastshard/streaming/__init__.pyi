from fastshard.streaming.encodings import register_encoding as register_encoding
from fastshard.streaming.index import FileInfo as FileInfo
from fastshard.streaming.installation import install as install
from fastshard.streaming.installation import uninstall as uninstall
from fastshard.streaming.merge import merge_index as merge_index
from fastshard.streaming.read.base import JointReader as JointReader
from fastshard.streaming.read.base import Reader as Reader
from fastshard.streaming.read.base import SplitReader as SplitReader
from fastshard.streaming.read.jsonl import JSONReader as JSONReader
from fastshard.streaming.read.mds import MDSReader as MDSReader
from fastshard.streaming.read.readers import reader_from_json as reader_from_json
from fastshard.streaming.read.xsv import CSVReader as CSVReader
from fastshard.streaming.read.xsv import TSVReader as TSVReader
from fastshard.streaming.read.xsv import XSVReader as XSVReader
from fastshard.streaming.rebuild import rebuild_index as rebuild_index
from fastshard.streaming.samples import StreamSample as StreamSample
from fastshard.streaming.write.base import JointWriter as JointWriter
from fastshard.streaming.write.base import SplitWriter as SplitWriter
from fastshard.streaming.write.base import Writer as Writer
from fastshard.streaming.write.jsonl import JSONWriter as JSONWriter
from fastshard.streaming.write.mds import MDSWriter as MDSWriter
from fastshard.streaming.write.xsv import CSVWriter as CSVWriter
from fastshard.streaming.write.xsv import TSVWriter as TSVWriter
from fastshard.streaming.write.xsv import XSVWriter as XSVWriter

__all__ = [
    "CSVReader",
    "CSVWriter",
    "FileInfo",
    "JSONReader",
    "JSONWriter",
    "JointReader",
    "JointWriter",
    "MDSReader",
    "MDSWriter",
    "Reader",
    "SplitReader",
    "SplitWriter",
    "StreamSample",
    "TSVReader",
    "TSVWriter",
    "Writer",
    "XSVReader",
    "XSVWriter",
    "install",
    "merge_index",
    "reader_from_json",
    "rebuild_index",
    "register_encoding",
    "uninstall",
]
