from __future__ import annotations

from supervisor.acp.trace import Trace

SESSION = "58b6b175-b590-41e4-9b2a-4a7216e62dc2"


def test_the_last_frames_are_remembered() -> None:
    trace = Trace(frames=2, frame_bytes=10)
    trace.record(">", 1.0, b'{"first":1}\n')
    trace.record(">", 2.0, b"0123456789abcdef\n")
    trace.record("<", 3.0, b"{}", size=99)
    assert [(line.direction, line.time, line.size, line.text) for line in trace.render()] == [
        (">", 2.0, 17, "0123456789"),
        ("<", 3.0, 99, "{}"),
    ]


def test_session_ids_are_masked_wherever_they_occur() -> None:
    trace = Trace()
    trace.record("<", 0.0, f'{{"id":1,"result":{{"sessionId":"{SESSION}"}}}}'.encode())
    trace.record("<", 0.0, f'{{"error":{{"message":"Session {SESSION} not found"}}}}'.encode())
    texts = [line.text for line in trace.render()]
    assert texts[0] == '{"id":1,"result":{"sessionId":"…16e62dc2"}}'
    assert texts[1] == '{"error":{"message":"Session …16e62dc2 not found"}}'


def test_a_session_id_that_is_cut_off_is_removed() -> None:
    trace = Trace(frame_bytes=40)
    trace.record(">", 0.0, f'{{"params":{{"sessionId":"{SESSION}"}}}}'.encode())
    assert trace.render()[0].text == '{"params":{"sessionId":"'


def test_the_callers_mask_is_applied() -> None:
    trace = Trace()
    trace.record(">", 0.0, b'{"key":"s3cret"}')
    assert trace.render(lambda text: text.replace("s3cret", "***"))[0].text == '{"key":"***"}'
