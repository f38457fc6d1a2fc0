"""Which ONNX operators are drawn, and why some are not."""

from __future__ import annotations

from bench.fuzz.builder import Draw
from bench.fuzz.onnx.elements import ELEMENTS
from bench.fuzz.onnx.layers import LAYERS
from bench.fuzz.onnx.moves import MOVES
from bench.fuzz.onnx.others import OTHERS
from bench.fuzz.program import words

__all__ = ["NO_GENERATOR", "OPERATORS"]

OPERATORS: dict[str, Draw] = {**ELEMENTS, **MOVES, **LAYERS, **OTHERS}
"""Name -> what adds it; words behind an operator's name say which of its forms."""

_ML = words(
    """ArrayFeatureExtractor Binarizer CastMap CategoryMapper DictVectorizer FeatureVectorizer Imputer LabelEncoder
    LinearClassifier LinearRegressor Normalizer OneHotEncoder SVMClassifier SVMRegressor Scaler TreeEnsemble
    TreeEnsembleClassifier TreeEnsembleRegressor ZipMap"""
)
_TEXT = words("RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer")
_SEQUENCES = words(
    """ConcatFromSequence SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength
    SequenceMap SplitToSequence Optional OptionalGetElement OptionalHasElement"""
)
_RANDOM = words("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike")
_MICROSOFT = words(
    """EmbedLayerNormalization PagedAttention MatMulNBits MatMulInteger16 QGemm QLinearAveragePool QLinearConcat
    QLinearGlobalAveragePool QLinearReduceMean QLinearSoftmax QLinearWhere"""
)
NO_GENERATOR: dict[str, str] = {
    **dict.fromkeys(_ML, "of ai.onnx.ml, always refused"),
    **dict.fromkeys(_TEXT, "of text, always refused"),
    **dict.fromkeys(_SEQUENCES, "of sequences, always refused"),
    **dict.fromkeys(_RANDOM, "random numbers, always refused"),
    **dict.fromkeys(("NonMaxSuppression", "NonZero", "Unique"), "sizes that depend on data"),
    **dict.fromkeys(_MICROSOFT, "of com.microsoft, without a reference in float64 so far"),
    "ImageDecoder": "files of images, always refused",
    "Scatter": "older name of ScatterElements, which the reference evaluator does not have",
    "Upsample": "older form of Resize, which current opsets do not have",
    "MaxRoiPool": "the reference evaluator does not have it",
    "BitCast": "known numbers alone, folded when they are read",
}
"""Operator that is read -> why no generator draws it."""
